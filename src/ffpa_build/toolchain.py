"""Pinned compilers: found in the running environment, or installed once into a folder of the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ffpa_build.errors import ToolchainError
from ffpa_build.model import Arch, Spec, ToolchainSpec, version_tuple

_STAMP = "toolchain.json"


@dataclass(frozen=True)
class Toolchain:
    """A compiler ready to run. `identity` goes into cache keys: the same text wherever the same version is found."""

    name: str
    kind: str
    version: str
    identity: str
    site: str  # folder of the Python packages that hold it; "" for an nvcc on PATH
    library: str  # the compiler's folder below `site`
    nvcc: str = ""  # path of the program, for kind nvcc
    threads: int = 0  # of one nvcc, which changes no byte; 0: nvcc's own choice


def toolchain_spec(spec: Spec, name: str | None) -> ToolchainSpec:
    """The declared toolchain of a name; None is the default. Raises ToolchainError."""
    if name is None:
        return spec.default_toolchain
    if name not in spec.toolchains:
        raise ToolchainError(f"toolchain = {name!r}: allowed: {', '.join(spec.toolchains)}")
    return spec.toolchains[name]


def check_target(declared: ToolchainSpec, target: Arch) -> None:
    """Raises ToolchainError if the toolchain is too old for the arch."""
    if version_tuple(declared.version) < version_tuple(target.min_cuda):
        raise ToolchainError(
            f"toolchain {declared.name} (CUDA {declared.version}) cannot compile {target.name}, "
            f"which needs CUDA >= {target.min_cuda}"
        )


def identity(declared: ToolchainSpec) -> str:
    """What a cubin depends on: the kind and every pinned package."""
    return " ".join((declared.kind, *declared.requirements))


def locate(declared: ToolchainSpec, cache_dir: Path) -> Toolchain:
    """The toolchain that `resolve` gives, without installing it; `site` may not exist yet."""
    return _resolve(declared, cache_dir, install=False)


def resolve(declared: ToolchainSpec, cache_dir: Path) -> Toolchain:
    """The toolchain, ready to run: of the running environment if that holds exactly the pinned versions, else of the
    cache, installed there if need be. Raises ToolchainError."""
    return _resolve(declared, cache_dir, install=True)


def _resolve(declared: ToolchainSpec, cache_dir: Path, install: bool) -> Toolchain:
    site = _running_site(declared) if declared.requirements else None
    if site is None and declared.kind == "nvcc":
        on_path = Toolchain(declared.name, "nvcc", declared.version, f"nvcc {declared.version} on PATH", "", "")
        program = shutil.which("nvcc")
        found = None if program is None else _nvcc_version(program)
        if program is not None and found == declared.version:
            return replace(on_path, nvcc=program)
        if not declared.requirements:
            if not install:
                return on_path
            state = "there is no nvcc on PATH" if program is None else f"{program} is {found or 'not a working nvcc'}"
            raise ToolchainError(
                f"toolchain {declared.name} is nvcc {declared.version} of the system, but {state}; "
                "put that nvcc on PATH or take another toolchain"
            )
    if site is None:
        site = _installed(declared, cache_dir) if install else _install_dir(declared, cache_dir)
    nvcc = ""
    if declared.kind == "nvcc":
        nvcc = str(site / declared.library / "bin" / ("nvcc.exe" if os.name == "nt" else "nvcc"))
        version = _nvcc_version(nvcc) if install else declared.version
        if version != declared.version:
            raise ToolchainError(f"{nvcc} is version {version}, but {declared.name} pins {declared.version}")
    return Toolchain(
        declared.name, declared.kind, declared.version, identity(declared), str(site), declared.library, nvcc
    )


def _nvcc_version(program: str) -> str | None:
    try:
        result = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bV(\d+\.\d+\.\d+)", result.stdout)
    return match[1] if match else None


def _running_site(declared: ToolchainSpec) -> Path | None:
    """The site-packages folder of the running environment, if it holds exactly the pinned versions."""
    folders = set()
    for requirement in declared.requirements:
        name, version = requirement.split("==")
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None
        if distribution.version != version:
            return None
        folders.add(Path(str(distribution.locate_file(""))).resolve())
    folder = folders.pop()
    return None if folders or not (folder / declared.library).is_dir() else folder


def _install_dir(declared: ToolchainSpec, cache_dir: Path) -> Path:
    # cuda-bindings is built per Python, so each Python has its own folder.
    tag = f"{sys.implementation.cache_tag}-{sys.platform}"
    return cache_dir / "toolchains" / f"{declared.name}-{tag}"


def _stamp_text(declared: ToolchainSpec) -> str:
    return json.dumps({"requirements": list(declared.requirements)}, sort_keys=True)


def _installed(declared: ToolchainSpec, cache_dir: Path) -> Path:
    final = _install_dir(declared, cache_dir)
    if _stamped(final, declared):
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--target", str(staging / "site")]
    command += ["--requirement", str(staging / "requirements.txt")]
    try:
        lines = [
            " ".join((requirement, *(f"--hash=sha256:{digest}" for digest in digests)))
            for requirement, digests in zip(declared.requirements, declared.hashes, strict=True)
        ]
        (staging / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"ffpa_build: installing toolchain {declared.name}: {' '.join(declared.requirements)}", file=sys.stderr)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise ToolchainError(
                f"toolchain {declared.name} cannot be installed; install {' '.join(declared.requirements)} into this "
                f"environment, or see pip's message:\n{result.stderr.strip()}"
            )
        site = staging / "site"
        (site / _STAMP).write_text(_stamp_text(declared), encoding="utf-8")
        if final.exists():  # of other pins, or unfinished
            final.rename(staging / "old")
        try:
            site.rename(final)
        except OSError:
            if not _stamped(final, declared):  # another process may have been first with the same pins
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final


def _stamped(folder: Path, declared: ToolchainSpec) -> bool:
    try:
        return (folder / _STAMP).read_text(encoding="utf-8") == _stamp_text(declared)
    except OSError:
        return False
