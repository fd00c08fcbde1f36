"""Builds the launcher, the one native library of the runtime, with a host C++ compiler and the tvm-ffi wheel."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ffpa_build.host_compiler import HostCompiler, host_compiler

CSRC = Path(__file__).resolve().parents[2] / "csrc"


def build_launcher(out_path: Path, compiler: HostCompiler | None = None, csrc: Path = CSRC) -> Path:
    """Compiles csrc/launcher into the shared library ``out_path`` and returns that path.

    ``compiler`` is this platform's own if None, ``csrc`` the source folder. The same sources, compiler and tvm-ffi give
    the same bytes. The file appears whole or not at all. Raises what ``HostCompiler.link`` raises.
    """
    out_path = Path(out_path).resolve()
    out_path.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(path.relative_to(csrc).as_posix() for path in (csrc / "launcher").glob("*.cc"))
    with tempfile.TemporaryDirectory(dir=out_path.parent, prefix=".launcher-") as scratch:
        built = Path(scratch) / out_path.name
        (compiler or host_compiler()).link(sources, csrc, built)
        os.replace(built, out_path)
    return out_path
