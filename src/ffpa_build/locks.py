"""`python -m ffpa_build.locks check | write`: ci/locks/, the environments that releases are built in.

There is a lock for every NVRTC of `variants/toolchains/`: requirements with hashes, as pip reads them, for each Python
and platform that a build runs on, of the dependency groups in GROUPS and of the compiler. uv resolves them (dependency
group "lock"); `check` needs no network and says whether what is locked still is what the tables ask for.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ffpa_build.errors import BuildError
from ffpa_build.model import Spec, ToolchainSpec
from ffpa_build.spec import find_root, load_spec
from ffpa_build.tables import read_toml

GROUPS = ("check", "launcher")
"""Of the root pyproject.toml; "check" includes what builds the wheels that it looks at."""
CONSTRAINTS = Path("ci", "build-constraints.txt")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class LockError(BuildError):
    """A lock that is absent or unreadable, or that cannot be made. The text says why."""


@dataclass(frozen=True)
class Locked:
    """A row of a lock: one version of a package, with the sha256 digests that its files may have."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]

    def applies(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether an environment gets it; None is the running one."""
        return self.marker is None or self.marker.evaluate(dict(environment or {}))


def path_of(toolchain: ToolchainSpec) -> Path:
    """The lock of a toolchain, in the tree. Raises LockError for one that is not of the package index."""
    if toolchain.kind != "nvrtc":
        raise LockError(f"toolchain {toolchain.name}: there are locks for NVRTC only")
    return toolchain.lock


def toolchains(spec: Spec) -> dict[Path, ToolchainSpec]:
    """The locks of a tree, with the compilers in them."""
    found: dict[Path, ToolchainSpec] = {}
    for toolchain in spec.toolchains.values():
        if toolchain.kind == "nvrtc":
            path = path_of(toolchain)
            if path in found:
                raise LockError(f"{path}: both {found[path].name} and {toolchain.name} would have this lock")
            found[path] = toolchain
    return found


def requirements(spec: Spec, toolchain: ToolchainSpec) -> list[str]:
    """What the lock of a toolchain is made from."""
    groups = read_toml(spec.root / "pyproject.toml", "pyproject.toml")["dependency-groups"]

    def expand(name: str) -> Iterator[str]:
        for item in groups[name]:
            if isinstance(item, str):
                yield item
            else:
                yield from expand(item["include-group"])

    return list(dict.fromkeys([*(item for name in GROUPS for item in expand(name)), *toolchain.requirements]))


def parse(text: str, name: str) -> list[Locked]:
    """The rows of a lock. Raises LockError for a line that is anything but a pinned version with its hashes."""
    found = []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for entry in "\n".join(lines).replace("\\\n", " ").splitlines():
        stated, *options = re.split(r"\s+(?=--)", entry.strip())
        hashes = [match[1] for option in options if (match := _HASH.fullmatch(option))]
        try:
            row = Requirement(stated)
        except InvalidRequirement as error:
            raise LockError(f"{name}: {stated!r}: {error}") from error
        pins = [clause.version for clause in row.specifier if clause.operator == "=="]
        if row.url or len(row.specifier) != 1 or len(pins) != 1:
            raise LockError(f"{name}: {stated!r}: must be name==version")
        if not hashes or len(hashes) != len(options):
            raise LockError(f"{name}: {stated!r}: must have hashes, --hash=sha256:..., and no other option")
        found.append(Locked(canonicalize_name(row.name), pins[0], row.marker, tuple(hashes)))
    return found


def read(spec: Spec, toolchain: ToolchainSpec) -> list[Locked]:
    """The lock of a toolchain. Raises LockError."""
    path = path_of(toolchain)
    try:
        return parse((spec.root / path).read_text(encoding="utf-8"), path.as_posix())
    except OSError as error:
        raise LockError(f"{path}: {error.strerror or error}") from error


def differences(spec: Spec) -> list[str]:
    """What the locks and the tables disagree about, a line each."""
    found = []
    for path, toolchain in toolchains(spec).items():
        try:
            rows = read(spec, toolchain)
        except LockError as error:
            found.append(str(error))
            continue
        wanted = [Requirement(text) for text in requirements(spec, toolchain)]
        wanted += [Requirement(text) for text in _lines(spec.root / CONSTRAINTS)]
        problems = [
            line for python in PYTHONS for machine in MACHINES for line in _unmet(wanted, rows, _linux(python, machine))
        ]
        found += [f"{path}: {line}" for line in dict.fromkeys(problems)]
        locked = {(row.name, row.version): set(row.hashes) for row in rows}
        for text, digests in zip(toolchain.requirements, toolchain.hashes, strict=True):
            name, _, version = text.partition("==")
            if not set(digests) <= locked.get((canonicalize_name(name), version), set(digests)):
                found.append(f"{path}: {text}: the hashes are not those of variants/toolchains/{toolchain.name}.toml")
        if "://" in (spec.root / path).read_text(encoding="utf-8"):
            found.append(f"{path}: names the address of an index, which is the user's choice")
    return found


def _unmet(wanted: list[Requirement], rows: list[Locked], environment: Mapping[str, str]) -> Iterator[str]:
    where = f"Python {environment['python_version']}, {environment['platform_machine']}"
    active: dict[str, str] = {}
    for row in rows:
        if row.applies(environment):
            if row.name in active:
                yield f"{row.name}: more than one version for {where}"
            active[row.name] = row.version
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate(dict(environment)):
            continue
        version = active.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement.name}: missing for {where}"
        elif version not in requirement.specifier:
            yield f"{requirement.name}: {version} is locked for {where}, wanted: {requirement.specifier}"


def _linux(python: str, machine: str) -> dict[str, str]:
    """The variables of markers, for CPython on Linux."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.4",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.4",
        "python_version": python,
        "sys_platform": "linux",
    }


def _lines(path: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def environment_differences(spec: Spec, toolchain: ToolchainSpec) -> list[str]:
    """Where the running environment departs from the lock of a toolchain, a line each. Raises LockError."""
    found = []
    for row in read(spec, toolchain):
        if not row.applies():
            continue
        try:
            installed = metadata.version(row.name)
        except metadata.PackageNotFoundError:
            installed = "not installed"
        if installed != row.version:
            found.append(f"{row.name}: {installed}, locked: {row.version}")
    return found


def write(spec: Spec) -> None:
    """Makes every lock with uv. What is locked stays as it is as long as it is allowed. Raises LockError."""
    for path, toolchain in toolchains(spec).items():
        out = spec.root / path
        out.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--universal"]
        command += ["--python-version", PYTHONS[0], "--only-binary", ":all:", "--generate-hashes"]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url"]
        command += ["--constraint", str(CONSTRAINTS), "--output-file", str(path), "-"]
        text = "\n".join(requirements(spec, toolchain)) + "\n"
        result = subprocess.run(command, cwd=spec.root, input=text, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise LockError(f"{path}: uv could not make it: {result.stderr.strip()}")
        out.write_text(_HEADER.format(toolchain=toolchain.name, path=path.as_posix()) + _body(out), encoding="utf-8")


def _body(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


_HEADER = """\
# The environment that releases are built in with {toolchain}; made by: python -m ffpa_build.locks write
#   pip install --require-hashes --only-binary :all: -r {path}
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ffpa_build.locks", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["check", "write"])
    parser.add_argument("--tree", type=Path, default=find_root(), help="root of the sources")
    options = parser.parse_args(arguments)
    spec = load_spec(options.tree)
    try:
        if options.action == "write":
            write(spec)
        found = differences(spec)
    except LockError as error:
        found = [str(error)]
    for line in found:
        print(f"{line}; run: nox -s lock", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
