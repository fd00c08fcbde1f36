"""Check a folder of wheels as strictly as an index and a user would; exit status 1 with a line for all that is wrong.

    python ci/check_wheels.py dist

Contents: RECORD, manifest, every cubin's hash, arch, launch facts and instructions, the launcher's libraries.
Form: sizes, the platform that auditwheel grants, the metadata by twine. In use: all wheels are installed together into
an environment without torch, list their packs there and are removed again. Needs the dependency group "check".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TREE / "src"), str(TREE / "ci")]

from wheels import FOREIGN_LIBRARIES  # noqa: E402
from wheels import check as check_form  # noqa: E402

from ffpa_build.errors import BuildError  # noqa: E402
from ffpa_build.inspect_wheel import LAUNCHER, Wheel, inspect  # noqa: E402
from ffpa_build.sass import DISTRIBUTION, find_nvdisasm  # noqa: E402
from ffpa_build.spec import load_spec  # noqa: E402

NEWEST_GLIBC = (2, 28)
"""What the launcher may ask of the C library: that of manylinux_2_28."""
REQUIREMENTS = ("packaging",)
"""What `python -m ffpa_attn packs` imports besides the wheels; torch is not among it."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("wheels", type=Path, nargs="?", default=TREE / "dist", help="folder of wheels (default: dist)")
    parser.add_argument("--contents-only", action="store_true", help="neither auditwheel, twine nor an installation")
    options = parser.parse_args(arguments)
    paths = sorted(options.wheels.glob("*.whl"))
    if not paths:
        parser.error(f"{options.wheels}: no wheel there")
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        print(f"note: no {DISTRIBUTION}, so instructions are not looked at", file=sys.stderr)
    spec = load_spec(TREE)
    wrong = []
    for path in paths:
        try:
            check_form(path)
            wheel = Wheel.read(path)
            lines = inspect(wheel, spec, nvdisasm)
            if not options.contents_only and LAUNCHER in wheel.members:
                lines += platform_differences(path)
        except BuildError as error:
            lines = [str(error)]
        wrong += [f"{path.name}: {line}" for line in lines]
        print(f"{path.name}: {'wrong' if lines else 'contents are right'}", flush=True)
    if not options.contents_only:
        wrong += metadata_differences(paths)
        # Wheels that are known to be wrong are not installed.
        wrong += [] if wrong else installation_differences(paths)
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


def platform_differences(path: Path) -> list[str]:
    """Whether auditwheel grants the platform in the wheel's name, and whether that is old enough."""
    if not sys.platform.startswith("linux"):
        return []
    platform = path.stem.rpartition("-")[2]
    stated = re.fullmatch(r"manylinux_(\d+)_(\d+)_(x86_64|aarch64)", platform)
    if stated is None:
        return [f"its platform is {platform}; allowed: manylinux_<glibc>_<arch>, as auditwheel repair gives it"]
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return [f"auditwheel cannot judge it: {result.stderr.strip().splitlines()[-1:]}"]
    report = json.loads(result.stdout)
    found = []
    granted = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", report["sym_tag"])
    glibc = (int(stated[1]), int(stated[2]))
    if granted is None or (int(granted[1]), int(granted[2])) > glibc or granted[3] != stated[3]:
        found.append(f"its name says {platform}, its symbols allow {report['sym_tag']}")
    if glibc > NEWEST_GLIBC:
        found.append(f"needs glibc {stated[1]}.{stated[2]}; allowed: up to {'.'.join(map(str, NEWEST_GLIBC))}")
    foreign = sorted(set(report["external_libs"]) - set(FOREIGN_LIBRARIES))
    if foreign:
        found.append(f"needs {', '.join(foreign)} from the user's system")
    return found


def metadata_differences(paths: list[Path]) -> list[str]:
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    print(result.stdout, end="", flush=True)
    return [] if result.returncode == 0 else [f"twine check: {(result.stdout + result.stderr).strip()}"]


def installation_differences(paths: list[Path]) -> list[str]:
    """Installs all wheels together without torch, lists their packs, and removes them again."""
    with tempfile.TemporaryDirectory(prefix="ffpa-check-") as scratch:
        environment = Path(scratch, "environment")
        venv.create(environment, with_pip=True)
        python = str(environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]

        def run(*command: str) -> subprocess.CompletedProcess[str]:
            clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            return subprocess.run(command, cwd=scratch, env=clean, capture_output=True, text=True, check=False)

        constraints = ["--constraint", str(TREE / "ci" / "constraints.txt")]
        prepared = run(*pip, "install", *constraints, *REQUIREMENTS)
        if prepared.returncode != 0:
            return [f"an environment cannot be prepared: {prepared.stderr.strip()}"]
        before = installed_files(environment)
        result = run(*pip, "install", "--no-index", "--no-deps", *map(str, paths))
        if result.returncode != 0:
            return [f"the wheels cannot be installed together: {result.stderr.strip()}"]
        found = []
        wheels = [Wheel.read(path) for path in paths]
        if any(LAUNCHER in wheel.members for wheel in wheels):
            found += pack_differences(run(python, "-m", "ffpa_attn", "packs"), wheels)
        result = run(*pip, "uninstall", "--yes", *(wheel.name for wheel in wheels))
        if result.returncode != 0:
            found.append(f"the wheels cannot be removed: {result.stderr.strip()}")
        left = sorted(installed_files(environment) - before)
        found += [f"removing the wheels leaves {name}" for name in left]
        print(f"{len(paths)} wheels installed without torch and removed: {'wrong' if found else 'right'}", flush=True)
        return found


def pack_differences(result: subprocess.CompletedProcess[str], wheels: list[Wheel]) -> list[str]:
    """What `packs` printed, against the wheels that were installed."""
    if result.returncode != 0:
        return [f"python -m ffpa_attn packs: status {result.returncode}: {(result.stdout + result.stderr).strip()}"]
    lines = result.stdout.splitlines()
    print("\n".join(f"  {line}" for line in lines), flush=True)
    return [
        f"python -m ffpa_attn packs does not list {wheel.name} {wheel.version}"
        for wheel in wheels
        if wheel.manifests and not any(f"  {wheel.name} {wheel.version}  " in line for line in lines)
    ]


def installed_files(environment: Path) -> set[str]:
    """Files and folders of an environment, without what Python itself writes beside modules that are not ours."""
    return {
        path.relative_to(environment).as_posix()
        for path in environment.rglob("*")
        if "__pycache__" not in path.parts or "ffpa" in path.as_posix().removeprefix(environment.as_posix())
    }


if __name__ == "__main__":
    sys.exit(main())
