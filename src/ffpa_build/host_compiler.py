"""Host C++ compilers: how each of them makes a shared library of the launcher's sources."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ffpa_build.errors import CompileError, ToolchainError

GCC_FLAGS = (
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
# tvm-ffi's headers export by declaration there, so a DLL has its functions and nothing else.
MSVC_FLAGS = ("/W3", "/utf-8", "/permissive-", "/Zc:__cplusplus", "/Brepro")
MSVC_LINK_FLAGS = ("/Brepro", "/INCREMENTAL:NO")


@dataclass(frozen=True)
class TvmFfi:
    """The tvm-ffi to compile against: folders of headers, and the folder of the library."""

    include: Path
    dlpack: Path
    libraries: Path

    @classmethod
    def installed(cls) -> TvmFfi:
        """That of this Python."""
        from tvm_ffi import libinfo

        return cls(
            Path(libinfo.find_include_path()),
            Path(libinfo.find_dlpack_include_path()),
            Path(libinfo.find_libtvm_ffi()).parent,
        )

    @classmethod
    def of_wheel(cls, site: Path) -> TvmFfi:
        """That of a wheel for any platform, unpacked into the folder ``site``."""
        package = site / "tvm_ffi"
        return cls(package / "include", package / "include", package / "lib")


class HostCompiler(Protocol):
    def link(self, sources: Sequence[str], csrc: Path, out: Path) -> None:
        """Makes the shared library ``out`` of ``sources``, which are relative to ``csrc``.

        Raises ``ToolchainError`` without the compiler, and ``CompileError`` with the command and the compiler's output
        when compiling fails.
        """
        ...

    def version(self) -> str:
        """What the compiler says that it is, in a line."""
        ...


@dataclass(frozen=True)
class Gcc:
    """GCC, or a compiler that takes its options, on Linux. ``command``: the program, and arguments of every call."""

    command: tuple[str, ...] = ("g++",)
    tvm_ffi: TvmFfi = field(default_factory=TvmFfi.installed)

    def link(self, sources: Sequence[str], csrc: Path, out: Path) -> None:
        includes = {self.tvm_ffi.include: "tvm_ffi", self.tvm_ffi.dlpack: "dlpack"}
        command = [
            *self.command,
            *GCC_FLAGS,
            f"-ffile-prefix-map={csrc}=csrc",
            *(f"-ffile-prefix-map={path}={name}" for path, name in includes.items()),
            "-I.",
            *(f"-isystem{path}" for path in includes),
            *sources,
            f"-L{self.tvm_ffi.libraries}",
            "-ltvm_ffi",
            f"-Wl,-soname,{out.name}",
            "-o",
            str(out),
        ]
        try:
            result = subprocess.run(command, cwd=csrc, capture_output=True, text=True, check=False)
        except OSError as error:
            program = self.command[0]
            raise ToolchainError(f"the launcher needs the C++ compiler {program}, install it: {error}") from error
        if result.returncode != 0:
            text = f"the launcher did not compile; in {csrc}:\n{' '.join(command)}\n{result.stderr}"
            raise CompileError(text, result.stderr)

    def version(self) -> str:
        result = subprocess.run([*self.command, "--version"], capture_output=True, text=True, check=False)
        # The first word is the name that it was called by, which may be a path.
        program, _, rest = result.stdout.partition("\n")[0].strip().partition(" ")
        return f"{Path(program).name} {rest}".strip() or Path(self.command[0]).name


@dataclass(frozen=True)
class Msvc:
    """The Visual C++ that tvm-ffi finds on Windows, driven by tvm-ffi and ninja."""

    def link(self, sources: Sequence[str], csrc: Path, out: Path) -> None:
        from tvm_ffi import cpp

        with tempfile.TemporaryDirectory(dir=out.parent, prefix="msvc-") as folder:
            try:
                built = cpp.build(
                    name=out.stem,
                    cpp_files=[str(csrc / source) for source in sources],
                    extra_cflags=MSVC_FLAGS,
                    extra_ldflags=MSVC_LINK_FLAGS,
                    extra_include_paths=[str(csrc)],
                    build_directory=folder,
                )
            except RuntimeError as error:  # no compiler, or what it said
                raise CompileError(f"the launcher did not compile: {error}", str(error)) from error
            Path(built).replace(out)

    def version(self) -> str:
        return "Visual C++"  # tvm-ffi does not tell which


def host_compiler(command: Sequence[str] = (), platform: str = sys.platform) -> HostCompiler:
    """The compiler for ``platform`` (as in ``sys.platform``); ``command`` names another GCC than ``g++``."""
    if platform == "win32":
        return Msvc()
    return Gcc(tuple(command)) if command else Gcc()
