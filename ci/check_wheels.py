"""Check a folder of wheels as strictly as an index and a user would; exit status 1 with a line for all that is wrong.

    python ci/check_wheels.py dist

Contents: RECORD, manifest, every cubin's hash, arch, launch facts and instructions, the launcher's libraries.
Form: sizes, the platform that auditwheel grants, the metadata by twine, of sdists beside the wheels too. In use: for
each Python that the machine has of those that are supported, all wheels are installed together into an environment
without torch, are imported, list their packs and are removed again; and every extra of `ffpa` is resolved from the
folder alone. Needs the dependency group "check".
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TREE / "src"), str(TREE / "ci")]

from installation import PYTHONS, extra_differences, installation_differences, interpreters  # noqa: E402
from wheels import FOREIGN_LIBRARIES  # noqa: E402
from wheels import check as check_form  # noqa: E402

from ffpa_build.errors import BuildError  # noqa: E402
from ffpa_build.inspect_wheel import LAUNCHER, Wheel, inspect  # noqa: E402
from ffpa_build.model import Spec  # noqa: E402
from ffpa_build.sass import DISTRIBUTION, find_nvdisasm  # noqa: E402
from ffpa_build.spec import load_spec  # noqa: E402

NEWEST_GLIBC = (2, 28)
"""What the launcher may ask of the C library: that of manylinux_2_28."""


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
            check_form(path, spec)
            wheel = Wheel.read(path)
            lines = inspect(wheel, spec, nvdisasm)
            if not options.contents_only and LAUNCHER in wheel.members:
                lines += platform_differences(path)
        except BuildError as error:
            lines = [str(error)]
        wrong += [f"{path.name}: {line}" for line in lines]
        print(f"{path.name}: {'wrong' if lines else 'contents are right'}", flush=True)
    if not options.contents_only:
        wrong += metadata_differences([*paths, *sorted(options.wheels.glob("*.tar.gz"))])
        # Wheels that are known to be wrong are not installed.
        wrong += [] if wrong else use_differences(paths, spec)
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


def use_differences(paths: list[Path], spec: Spec) -> list[str]:
    found = []
    pythons = interpreters()
    for python, interpreter in pythons.items():
        lines = installation_differences(paths, interpreter)
        outcome = "wrong" if lines else "right"
        print(f"Python {python}: {len(paths)} wheels installed without torch and removed: {outcome}", flush=True)
        found += [f"Python {python}: {line}" for line in lines]
    missing = [python for python in PYTHONS if python not in pythons]
    if missing:
        print(f"note: not tried, for they are not on this machine: Python {', '.join(missing)}", flush=True)
    lines = extra_differences(paths, spec)
    print(f"the extras, from these wheels alone: {'wrong' if lines else 'right'}", flush=True)
    return found + lines


if __name__ == "__main__":
    sys.exit(main())
