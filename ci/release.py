"""Build a release: sdists and wheels of every distribution that has a kernel, checked, into one folder.

    python ci/release.py --toolchain nvrtc-12.9
    python ci/release.py --preset ci --check-reproducible --out dist/ci

Runs in the environment of the toolchain's lock (ci/locks/) and builds with what is installed there, so it needs no
network. Each wheel is built from the tree and once more from its sdist, and the two must be one, byte for byte. The
folder appears when everything in it has passed, ci/check_wheels.py included. `nox -s release` makes the environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TREE / "src"), str(TREE / "ci")]

import check_wheels  # noqa: E402
import wheels  # noqa: E402

from ffpa_build import environment as variables  # noqa: E402
from ffpa_build import locks  # noqa: E402
from ffpa_build.archives import first_difference  # noqa: E402
from ffpa_build.distributions import differences  # noqa: E402
from ffpa_build.errors import BuildError  # noqa: E402
from ffpa_build.model import MAX_WHEEL_MB, Spec  # noqa: E402
from ffpa_build.spec import load_spec  # noqa: E402

PRESET = "release"
SUMS = "SHA256SUMS"


def main(arguments: list[str] | None = None) -> int:
    spec = load_spec(TREE)
    options = parse_arguments(spec, arguments)
    given = {**os.environ, **wheels.build_environment(options)}
    for name, value in {"FFPA_BUILD_PRESET": PRESET, "SOURCE_DATE_EPOCH": wheels.SOURCE_DATE_EPOCH}.items():
        given[name] = given.get(name) or value
    try:
        settings = variables.settings(spec, given)
        out = (options.out or TREE / "dist" / "release" / settings.toolchain.name).absolute()
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BuildError(f"--out {out}: exists and is not empty")
        refuse_stale(spec)
        lines = locks.environment_differences(spec, settings.toolchain)
        if lines:
            path = locks.path_of(settings.toolchain)
            command = f"pip install --require-hashes --only-binary :all: -r {path.as_posix()}"
            raise BuildError("\n".join([f"this environment is not that of {path}:", *lines, f"run: {command}"]))
        out.parent.mkdir(parents=True, exist_ok=True)
        # Beside `out`, so that the last step is one rename.
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            staging = Path(scratch, "dist")
            staging.mkdir(mode=0o755)
            for distribution in options.dist or wheels.distributions(spec, given):
                for path in build(distribution, Path(scratch, distribution), given, options.check_reproducible):
                    check_size(path, spec)
                    wheels.publish(path, staging)
            if check_wheels.main([str(staging)]) != 0:
                raise BuildError("the wheels were built and are not right, so there is no release")
            write_sums(staging)
            if out.exists():
                out.rmdir()
            staging.rename(out)
    except (BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{out}: built with {settings.toolchain.name}")
    print((out / SUMS).read_text(encoding="ascii"), end="")
    return 0


def parse_arguments(spec: Spec, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="folder for it; must be empty or absent (dist/release/<toolchain>)")
    parser.add_argument(
        "--check-reproducible", action="store_true", help="compile the kernels of wheels from sdists a second time"
    )
    wheels.add_distributions(parser, spec)
    wheels.add_selection(parser)
    return parser.parse_args(arguments)


def refuse_stale(spec: Spec) -> None:
    stale = [*differences(spec), *locks.differences(spec)]
    if stale:
        raise BuildError("\n".join([*stale, "run: python -m ffpa_build.distributions write, or nox -s lock"]))


def build(distribution: str, scratch: Path, environment: dict[str, str], fresh: bool) -> list[Path]:
    """The wheel of a distribution and the sdist that the same wheel comes from.

    With `fresh` the second wheel's kernels are compiled, not taken from the cache; without, that the sdist has the
    same sources is proved all the same, because what the cache gives depends on all of them.
    """
    first = wheels.build_once(distribution, scratch / "tree", environment, sdist=False, isolated=False)
    again = {**environment, "FFPA_BUILD_CACHE": str(scratch / "cache")} if fresh else environment
    second = wheels.build_once(distribution, scratch / "sdist", again, sdist=True, isolated=False)
    (sdist,) = second.parent.glob("*.tar.gz")
    if first.name != second.name:
        raise wheels.WheelError(f"{sdist.name}: its wheel is {second.name}, that of the tree {first.name}")
    difference = first_difference(first, second)
    if difference is not None:
        raise wheels.WheelError(f"{sdist.name}: its wheel is not that of the tree: {difference}")
    print(f"{first.name}: the tree and {sdist.name} give the same {first.stat().st_size} bytes", flush=True)
    return [first, sdist]


def check_size(path: Path, spec: Spec) -> None:
    if path.suffix == ".whl":
        wheels.check(path, spec)
    elif path.stat().st_size > MAX_WHEEL_MB * 10**6:
        raise wheels.WheelError(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, allowed are {MAX_WHEEL_MB} MB")


def write_sums(folder: Path) -> None:
    """In the format of sha256sum."""
    lines = [f"{wheels.sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
