"""Build sdists and wheels twice, as two users on two machines would, and compare every byte.

    python ci/reproduce.py --arch sm_89 --headdim 64

Each build has its own copy of the tree in a folder of another name, another umask (of the copied sources too), time
zone, file times, hash seed and number of compiles at once, and a cache of its own that starts empty. SOURCE_DATE_EPOCH
is the same. Options are those of ci/wheels.py, except --out: with --keep DIR both builds stay there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "src"))

from ffpa_build.archives import first_difference  # noqa: E402

SOURCES = ("VERSION", "LICENSE", "pyproject.toml", "ci", "csrc", "packages", "src", "variants")
"""What a build reads of the tree."""
GENERATED = ("__pycache__", "*.pyc", "*.so", "*.cubin")


@dataclass(frozen=True)
class Place:
    """One of the two builders. `mtime` is of its source files, in seconds."""

    folder: str
    umask: int
    mtime: int
    environment: dict[str, str]


PLACES = (
    Place(
        "first/ffpa", 0o022, 1_600_000_000, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1", "FFPA_BUILD_JOBS": "1"}
    ),
    Place(
        "second/home/somebody else/checkout",
        0o077,
        1_700_000_001,
        {"TZ": "Pacific/Chatham", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "FFPA_BUILD_JOBS": "2"},
    ),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="build there and leave it; must be empty or absent")
    options, passed_on = parser.parse_known_args(arguments)
    for argument in passed_on:
        if argument.split("=")[0] in ("--out", "--check-reproducible", "--cache-dir", "--jobs", "-j"):
            parser.error(f"{argument}: this is for ci/reproduce.py to decide")
    if options.keep is None:
        with tempfile.TemporaryDirectory(prefix="ffpa-reproduce-") as scratch:
            return reproduce(Path(scratch), passed_on)
    options.keep.mkdir(parents=True, exist_ok=True)
    if any(options.keep.iterdir()):
        parser.error(f"--keep {options.keep}: not empty")
    return reproduce(options.keep.resolve(), passed_on)


def reproduce(scratch: Path, arguments: list[str]) -> int:
    """Builds in every place and compares; the exit status."""
    try:
        builds = [build(place, scratch, arguments) for place in PLACES]
    except subprocess.CalledProcessError as error:
        print(f"error: a build failed: {error}", file=sys.stderr)
        return 1
    found = differences(*builds)
    for line in found:
        print(f"differs: {line}", file=sys.stderr)
    if found:
        return 1
    names = sorted(files(builds[0]))
    cubins = sum(name.endswith(".cubin") for name in names)
    print(f"{cubins} cubins and {len(names) - cubins} distributions, built twice: every byte is the same")
    for name in names:
        if not name.endswith(".cubin"):
            print(f"  {name}")
    return 0


def build(place: Place, scratch: Path, arguments: list[str]) -> Path:
    """Copies the tree to a place and builds there. The folder with `dist/` and the kernels' `cache/`."""
    tree = scratch / place.folder
    copy_tree(TREE, tree, place)
    out = scratch / place.folder.split("/")[0]
    environment = {"SOURCE_DATE_EPOCH": "1580601600", **os.environ, **place.environment}
    environment["FFPA_BUILD_CACHE"] = str(out / "cache")
    for name in ("PYTHONPATH", "FFPA_BUILD_NVCC_THREADS"):
        environment.pop(name, None)
    command = [sys.executable, str(tree / "ci" / "wheels.py"), "--sdist", "--out", str(out / "dist"), *arguments]
    print(f"build in {tree}", flush=True)
    umask = -1 if os.name == "nt" else place.umask
    subprocess.run(command, check=True, cwd=out, env=environment, umask=umask)
    return out


def copy_tree(source: Path, target: Path, place: Place) -> None:
    """Copies the sources with the modes and times that the place's user would have given them."""
    target.mkdir(parents=True)
    for name in SOURCES:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns(*GENERATED))
        else:
            shutil.copy2(source / name, target / name)
    for path in sorted(target.rglob("*")):
        if path.is_file():
            path.chmod((0o777 if path.stat().st_mode & 0o100 else 0o666) & ~place.umask)
            os.utime(path, (place.mtime, place.mtime))


def files(out: Path) -> dict[str, Path]:
    """What a build made: the distributions and, by their cache keys, the cubins."""
    made = [*(out / "dist").iterdir(), *(out / "cache" / "cubins").rglob("*.cubin")]
    return {path.relative_to(out).as_posix(): path for path in made}


def differences(first: Path, second: Path) -> list[str]:
    """A line for every file that only one build has or whose bytes differ; a cubin before the wheel that carries it."""
    left, right = files(first), files(second)
    found = []
    for name in sorted(left.keys() | right.keys()):
        if name not in right or name not in left:
            found.append(f"{name}: only the {'second' if name in right else 'first'} build has it")
        elif (where := first_difference(left[name], right[name])) is not None:
            found.append(f"{name}: {where}")
    return found


if __name__ == "__main__":
    sys.exit(main())
