"""The name of the launcher's file, which lies beside this module in an installed package."""

from __future__ import annotations

import sys


def file_name(platform: str = sys.platform) -> str:
    """The name on ``platform`` (as in ``sys.platform``)."""
    return "_launcher.dll" if platform == "win32" else "_launcher.so"
