"""Hands this distribution's build to ffpa_build.wheel, two folders up in the tree and beside this file in an sdist."""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
tree = here if (here / "variants").is_dir() else here.parent.parent
sys.path.insert(0, str(tree / "src"))

from ffpa_build.wheel import FfpaBuildHook, FfpaMetadataHook  # noqa: E402, F401
