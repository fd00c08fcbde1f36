"""What installers make of a folder of wheels: in clean environments without torch, and of every extra of `ffpa`.

Used by ci/check_wheels.py. Nothing but the wheels and `packaging` is fetched; where the environment says PIP_NO_INDEX
and PIP_FIND_LINKS, no network is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ffpa_build.distributions import CORE_PACK, META, extras
from ffpa_build.inspect_wheel import LAUNCHER, Wheel
from ffpa_build.model import Spec

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
REQUIREMENTS = ("packaging",)
"""What `python -m ffpa_attn packs` imports besides the wheels; torch is not among it."""
CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
PLANNED = ("fp8", "fp4")
"""Extras of packs that are spoken of before the tables have them: pip warns that there is none, and goes on."""


def interpreters() -> dict[str, Path]:
    """The Pythons of this machine that wheels are tried with, by version; the running one is among them."""
    from python_discovery import get_interpreter

    # The shims of pyenv answer for chosen versions only; the interpreters behind them lie there.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [os.environ.get("PATH", os.defpath), *(str(path) for path in sorted(pyenv.glob("versions/*/bin")))]
    environment = {**os.environ, "PATH": os.pathsep.join(folders)}
    found = {}
    for python in PYTHONS:
        interpreter = get_interpreter(f"cpython{python}", try_first_with=[sys.executable], env=environment)
        if interpreter is not None:
            found[python] = Path(interpreter.system_executable or str(interpreter.executable))
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {running: Path(sys.executable), **found}


class Environment:
    """A new virtual environment. What runs in it sees nothing of the tree."""

    def __init__(self, folder: Path, interpreter: Path) -> None:
        self.folder = folder
        self.python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        self._scratch = folder.parent
        self.created = self._run([str(interpreter), "-m", "venv", "--clear", str(folder)])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python with these arguments."""
        return self._run([self.python, *arguments])

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pip", "--disable-pip-version-check", "--quiet", *arguments)

    def files(self) -> set[str]:
        """Files and folders, without what Python itself writes beside modules that are not ours."""
        return {
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if "__pycache__" not in path.parts or "ffpa" in path.as_posix().removeprefix(self.folder.as_posix())
        }

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(command, cwd=self._scratch, env=clean, capture_output=True, text=True, check=False)


def installation_differences(paths: list[Path], interpreter: Path = Path(sys.executable)) -> list[str]:
    """Installs all wheels together without torch, imports them, lists their packs, and removes them again."""
    with tempfile.TemporaryDirectory(prefix="ffpa-check-") as scratch:
        environment = Environment(Path(scratch, "environment"), interpreter)
        if environment.created.returncode != 0:
            return [f"{interpreter} makes no environment: {_output(environment.created)}"]
        prepared = environment.pip("install", "--constraint", str(CONSTRAINTS), *REQUIREMENTS)
        if prepared.returncode != 0:
            return [f"an environment cannot be prepared: {prepared.stderr.strip()}"]
        before = environment.files()
        result = environment.pip("install", "--no-index", "--no-deps", *(str(path.resolve()) for path in paths))
        if result.returncode != 0:
            return [f"the wheels cannot be installed together: {result.stderr.strip()}"]
        found = []
        wheels = [Wheel.read(path) for path in paths]
        if any(LAUNCHER in wheel.members for wheel in wheels):
            imported = environment.run("-c", "import sys, ffpa_attn; assert 'torch' not in sys.modules")
            if imported.returncode != 0:
                found.append(f"import ffpa_attn: {_output(imported)}")
            found += pack_differences(environment.run("-m", "ffpa_attn", "packs"), wheels)
        result = environment.pip("uninstall", "--yes", *(wheel.name for wheel in wheels))
        if result.returncode != 0:
            found.append(f"the wheels cannot be removed: {result.stderr.strip()}")
        left = sorted(environment.files() - before)
        return found + [f"removing the wheels leaves {name}" for name in left]


def pack_differences(result: subprocess.CompletedProcess[str], wheels: list[Wheel]) -> list[str]:
    """What `packs` printed, against the wheels that were installed."""
    if result.returncode != 0:
        return [f"python -m ffpa_attn packs: status {result.returncode}: {_output(result)}"]
    lines = result.stdout.splitlines()
    print("\n".join(f"  {line}" for line in lines), flush=True)
    return [
        f"python -m ffpa_attn packs does not list {wheel.name} {wheel.version}"
        for wheel in wheels
        if wheel.manifests and not any(f"  {wheel.name} {wheel.version}  " in line for line in lines)
    ]


def extra_differences(paths: list[Path], spec: Spec) -> list[str]:
    """Whether every extra of `ffpa` resolves, from these wheels alone, to what the tables say.

    pip resolves without an index and installs nothing. What the wheels need of other projects is there as empty
    stand-ins, so this is about the wheels and their pins, not about torch.
    """
    wheels = [Wheel.read(path) for path in paths]
    if META not in {wheel.name for wheel in wheels}:
        return []
    found = []
    with tempfile.TemporaryDirectory(prefix="ffpa-extras-") as scratch:
        index = Path(scratch, "index")
        index.mkdir()
        for path in paths:
            (index / path.name).symlink_to(path.resolve())
        stand_ins(wheels, index)
        here = {wheel.name: wheel.version for wheel in wheels}
        declared = extras(spec)
        complete = [extra for extra, names in declared.items() if here.keys() >= set(names)]
        planned = [name for name in PLANNED if name not in declared]
        for asked in [*((extra,) for extra in declared), *((name, *complete) for name in planned)]:
            brought = {META, spec.packs[CORE_PACK].distribution}
            brought.update(*(declared.get(name, ()) for name in asked))
            found += resolution_differences(index, asked, brought, here, set(asked) - set(declared))
    return found


def resolution_differences(
    index: Path, asked: tuple[str, ...], brought: set[str], here: dict[str, str], unknown: set[str]
) -> list[str]:
    """How pip's resolution of `ffpa` with the extras `asked` departs from the distributions `brought`.

    `here` has the versions of those that there are; pip must fail for want of another, and name it. For an extra in
    `unknown` it must warn and go on.
    """
    wanted = f"{META}[{','.join(asked)}]"
    report = index.parent / "report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--dry-run"]
    command += ["--ignore-installed", "--no-index", "--find-links", str(index), "--report", str(report), wanted]
    result = subprocess.run(command, cwd=index.parent, capture_output=True, text=True, check=False)
    absent = sorted(brought - here.keys())
    if absent:
        if result.returncode == 0 or not any(name in result.stderr for name in absent):
            return [f"{wanted}: {', '.join(absent)} is not there, and pip does not say so: {_output(result)}"]
        return []
    if result.returncode != 0:
        return [f"{wanted}: {_output(result)}"]
    rows = (row["metadata"] for row in json.loads(report.read_text(encoding="utf-8"))["install"])
    installed = {canonicalize_name(row["name"]): row["version"] for row in rows}
    # Sorted, for pips differ in the order of what they install.
    ours = {name: version for name, version in sorted(installed.items()) if name in here}
    expected = {name: here[name] for name in sorted(brought)}
    found = [] if ours == expected else [f"{wanted}: brings {ours}, must bring {expected}"]
    found += [
        f"{wanted}: pip does not warn of the unknown extra {name!r}: {_output(result)}"
        for name in sorted(unknown)
        if f"does not provide the extra '{name}'" not in result.stderr
    ]
    return found


def stand_ins(wheels: Iterable[Wheel], folder: Path) -> None:
    """Empty wheels, each named and numbered as a requirement of `wheels` on another project allows."""
    wheels = list(wheels)
    ours = {wheel.name for wheel in wheels}
    for wheel in wheels:
        header = BytesHeaderParser().parsebytes(wheel.members[f"{wheel.info}/METADATA"])
        for text in header.get_all("Requires-Dist", []):
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name in ours or name.startswith(f"{META}-"):
                continue
            version = next(clause.version for clause in requirement.specifier if clause.operator in (">=", "=="))
            _stand_in(name, version, folder)


def _stand_in(name: str, version: str, folder: Path) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")


def _output(result: subprocess.CompletedProcess[str]) -> str:
    return (result.stdout + result.stderr).strip()
