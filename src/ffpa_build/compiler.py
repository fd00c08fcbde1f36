"""The one function that turns source into a cubin, whatever the compiler."""

from __future__ import annotations

import ctypes
import importlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ffpa_build.errors import CompileError, ToolchainError
from ffpa_build.toolchain import Toolchain

# -v makes ptxas report registers and spills, which are facts of the manifest.
COMMON_FLAGS = ("-std=c++17", "--ptxas-options=-v")
# nvcc names a source by a hash of its path in local symbols; a relative name keeps the bytes the same everywhere.
NVCC_FLAGS = ("-cubin", "-objtemp", "-I.")


@dataclass(frozen=True)
class CompileResult:
    """`log` is everything the compiler said, the ptxas report included."""

    cubin: bytes
    log: str


def flags_for(kind: str) -> tuple[str, ...]:
    """The flags besides -arch."""
    return COMMON_FLAGS if kind == "nvrtc" else (*COMMON_FLAGS, *NVCC_FLAGS)


def compile_cubin(source: str, headers: Mapping[str, str], arch: str, toolchain: Toolchain, name: str) -> CompileResult:
    """Compiles one translation unit for one arch.

    `headers` maps the names used in `#include "..."` to texts; nothing else can be included. `name` stands for the
    source in messages. Run it in a process of its own: a process can load one NVRTC only.
    Raises CompileError with the log, ToolchainError if the compiler is not the pinned one.
    """
    if toolchain.kind == "nvrtc":
        return _nvrtc(source, headers, arch, toolchain, name)
    return _nvcc(source, headers, arch, toolchain, name)


def _load_nvrtc(toolchain: Toolchain) -> None:
    # The bindings look for the library in site-packages only, and take one that the process has loaded already.
    folder = Path(toolchain.site) / toolchain.library
    # NVRTC in turn finds its builtins by name only.
    if sys.platform == "win32":
        patterns = ("bin/**/nvrtc-builtins64_*[0-9].dll", "bin/**/nvrtc64_*_0.dll")
    else:
        patterns = ("lib/libnvrtc-builtins.so.[0-9]*", "lib/libnvrtc.so.[0-9]*")
    for pattern in patterns:
        libraries = sorted(folder.glob(pattern))
        if not libraries:
            raise ToolchainError(f"toolchain {toolchain.name}: nothing matches {pattern} in {folder}")
        ctypes.CDLL(str(libraries[0]))
    sys.path.insert(0, toolchain.site)


def _nvrtc(source: str, headers: Mapping[str, str], arch: str, toolchain: Toolchain, name: str) -> CompileResult:
    _load_nvrtc(toolchain)
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")

    def call(result: tuple[object, ...], what: str) -> object:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise ToolchainError(f"toolchain {toolchain.name}: {what}: {result[0]}")
        return result[1] if len(result) > 1 else None

    status, *numbers = nvrtc.nvrtcVersion()
    call((status,), "nvrtcVersion")
    loaded = ".".join(map(str, numbers))
    if numbers != [int(part) for part in toolchain.version.split(".")[:2]]:  # it does not tell more
        raise ToolchainError(f"toolchain {toolchain.name}: NVRTC {loaded} was loaded instead of {toolchain.version}")
    program = call(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            f"{name}.cu".encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [header.encode() for header in headers],
        ),
        "nvrtcCreateProgram",
    )
    options = [option.encode() for option in (f"-arch={arch}", *COMMON_FLAGS)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log_buffer = b" " * int(str(call(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")))
    call(nvrtc.nvrtcGetProgramLog(program, log_buffer), "nvrtcGetProgramLog")
    log = log_buffer.rstrip(b"\0 ").decode(errors="replace")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{toolchain.name} rejects {name} ({status.name})", log)
    cubin = b" " * int(str(call(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")))
    call(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    return CompileResult(cubin, log)


def _nvcc(source: str, headers: Mapping[str, str], arch: str, toolchain: Toolchain, name: str) -> CompileResult:
    with tempfile.TemporaryDirectory(prefix="ffpa-nvcc-") as folder:
        root = Path(folder)
        for header, text in {**headers, f"{name}.cu": source}.items():
            path = root / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = [toolchain.nvcc, f"-arch={arch}", *flags_for("nvcc"), "-Xcudafe"]
        command += [f"--orig_src_path_name={name}.cu", f"{name}.cu", "-o", "out.cubin"]
        if toolchain.threads:
            command += ["--threads", str(toolchain.threads)]
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        log = (result.stdout + result.stderr).strip()
        if result.returncode < 0:
            ended = signal.Signals(-result.returncode).name
            raise CompileError(f"{toolchain.name} was ended by {ended} while it compiled {name}", log)
        if result.returncode != 0:
            raise CompileError(f"{toolchain.name} rejects {name} (exit status {result.returncode})", log)
        cubin = root / "out.cubin"
        if not cubin.is_file():
            raise CompileError(f"{toolchain.name} made no cubin of {name}", log)
        return CompileResult(cubin.read_bytes(), log)
