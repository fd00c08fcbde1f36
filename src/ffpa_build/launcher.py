"""Builds the launcher, the one native library of the runtime, with a host C++ compiler and the tvm-ffi wheel."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tvm_ffi import libinfo

from ffpa_build.errors import CompileError, ToolchainError

CSRC = Path(__file__).resolve().parents[2] / "csrc"

FLAGS = (
    "-O2",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wall",
    "-Wextra",
    # Same bytes from any directory, and no randomness in symbols or notes.
    "-frandom-seed=ffpa_launcher",
    "-Wl,--build-id=none",
    "-Wl,-s",
    "-Wl,--version-script=launcher/exports.map",
    "-Wl,--no-undefined",
    "-Wl,-z,relro,-z,now",
)


def build_launcher(out_path: Path, cxx: str = "g++", csrc: Path = CSRC) -> Path:
    """Compiles csrc/launcher into the shared library ``out_path`` and returns that path.

    ``cxx`` is a GCC-compatible C++17 compiler, ``csrc`` the source folder. The same sources, compiler and tvm-ffi give
    the same bytes. The file appears whole or not at all.

    Raises ``ToolchainError`` without the compiler, and ``CompileError`` with the command and the compiler's output when
    compiling fails.
    """
    out_path = Path(out_path).resolve()
    out_path.parent.mkdir(parents=True, exist_ok=True)
    library = Path(libinfo.find_libtvm_ffi())
    includes = {libinfo.find_include_path(): "tvm_ffi", libinfo.find_dlpack_include_path(): "dlpack"}
    sources = sorted(path.relative_to(csrc).as_posix() for path in (csrc / "launcher").glob("*.cc"))
    with tempfile.TemporaryDirectory(dir=out_path.parent, prefix=".launcher-") as scratch:
        built = Path(scratch) / out_path.name
        command = [
            cxx,
            *FLAGS,
            f"-ffile-prefix-map={csrc}=csrc",
            *(f"-ffile-prefix-map={path}={name}" for path, name in includes.items()),
            "-I.",
            *(f"-isystem{path}" for path in includes),
            *sources,
            f"-L{library.parent}",
            "-ltvm_ffi",
            f"-Wl,-soname,{out_path.name}",
            "-o",
            str(built),
        ]
        try:
            result = subprocess.run(command, cwd=csrc, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ToolchainError(f"the launcher needs the C++ compiler {cxx}, install it: {error}") from error
        if result.returncode != 0:
            text = f"the launcher did not compile; in {csrc}:\n{' '.join(command)}\n{result.stderr}"
            raise CompileError(text, result.stderr)
        os.replace(built, out_path)
    return out_path
