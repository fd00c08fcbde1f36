"""The one version of every distribution of the project."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def core_version() -> str:
    """The installed version of ffpa-core; in a source tree that is not installed, the text of VERSION."""
    try:
        return metadata.version("ffpa-core")
    except metadata.PackageNotFoundError:
        source = Path(__file__).resolve().parents[2] / "VERSION"
        if source.is_file():
            return source.read_text(encoding="utf-8").strip()
        return "0+unknown"
