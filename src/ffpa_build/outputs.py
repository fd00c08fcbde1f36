"""What builds leave behind, and removing it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ffpa_attn.library import file_name
from ffpa_build.model import Spec

CACHE_FOLDERS = ("cubins", "jobs", "toolchains")
KERNEL_FOLDERS = CACHE_FOLDERS[:2]
"""Of the cache: what a build can make again without a download."""


def pack_folders(spec: Spec, out: Path | None = None) -> list[Path]:
    """The packs below build/packs; `out` may name another folder, which can hold other things too."""
    folder = out or spec.root / "build" / "packs"
    return [folder / pack.package for pack in spec.packs.values()]


def launcher(spec: Spec) -> Path:
    """Where an editable install has the launcher."""
    return spec.root / "src" / "ffpa_attn" / file_name()


def everything(spec: Spec, cache: Path) -> list[Path]:
    """All that a build of this tree made: packs, wheels, the launcher, and compiled kernels in the cache."""
    return [*pack_folders(spec), spec.root / "dist", launcher(spec), *(cache / name for name in KERNEL_FOLDERS)]


def remove(paths: Iterable[Path]) -> Iterator[Path]:
    """Removes what is there, and yields it."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
        else:
            continue
        yield path
