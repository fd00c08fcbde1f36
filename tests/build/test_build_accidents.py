"""Builds that are cut short: a compiler that fails or is killed, a full disk. What follows is right all the same.

tests/packaging/test_check_wheels.py has the accidents of finished wheels: tampered cubins, foreign manifests and archs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from build_tree import REPOSITORY

from ffpa_build import schedule
from ffpa_build.api import Selection, assemble_packs, build_report, load_spec
from ffpa_build.build import BuildReport
from ffpa_build.cache import Cache

pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses POSIX signals and limits")

KERNEL = "tiny.copy-sm_89-bf16-d64-s2"

KILLED = """
import os, signal, sys
from ffpa_build import compile_one

left = int(sys.argv.pop(1))

def counted(call):
    def wrapper(*arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return call(*arguments, **options)
    return wrapper

compile_one.compile_cubin = counted(compile_one.compile_cubin)
os.fsync, os.replace = counted(os.fsync), counted(os.replace)
sys.exit(compile_one.main())
"""
"""Compiles as compile_one does, and is killed before it compiles or before one of the steps that store the result."""

FULL_DISK = """
import os, subprocess, sys
from pathlib import Path

disk, toolchains, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
folder = Path(disk)
(folder / "cache").mkdir()
(folder / "cache" / "toolchains").symlink_to(toolchains)
filler = folder / "filler"
with filler.open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError as error:
        print(error, file=sys.stderr)
free = 0
while True:
    result = subprocess.run(command, capture_output=True, text=True)
    halves = [path.name for path in folder.rglob("ffpa_pack_core") if len(list(path.rglob("*.cubin"))) != 2]
    print(free, result.returncode, "No space left on device" in result.stderr, halves, sep="|", flush=True)
    if result.returncode == 0:
        print(result.stdout)
        print((folder / "out" / "ffpa_pack_core" / "manifest.json").read_text())
        break
    sys.stderr.write(result.stderr)
    free += 1
    os.truncate(filler, max(filler.stat().st_size - 4096, 0))
"""
"""Builds on a disk that starts full and gets one page more each time, until a build succeeds."""


def build(tree: Path, cache: Path, **options: str) -> BuildReport:
    spec = load_spec(tree)
    selection = Selection.make(spec, archs="89", **options)  # type: ignore[arg-type]
    return build_report(selection, spec=spec, cache_dir=cache, jobs=1, quiet=True)


def command(tree: Path, cache: Path, *arguments: str) -> list[str]:
    options = ["--arch", "89", "--headdim", "64,72", "-q", "-j", "1", "--root", str(tree), "--cache-dir", str(cache)]
    return [sys.executable, "-m", "ffpa_build", "build", *options, *arguments]


@pytest.fixture
def fresh(cache: Path, tmp_path: Path) -> Callable[[str], Path]:
    """fresh(name) -> another empty cache that shares the toolchain."""

    def fresh(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "toolchains").symlink_to(cache / "toolchains")
        return folder

    return fresh


@pytest.mark.parametrize("step", range(5))
def test_a_compile_killed_at_any_step_is_reported_and_its_halves_are_not_used(
    tree: Path, cache: Path, tmp_path: Path, fresh: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    spec, out = load_spec(tree), tmp_path / "out"
    selection = Selection.make(spec, archs="89")
    with monkeypatch.context() as patch:
        wrapper = tmp_path / "killed.py"
        wrapper.write_text(KILLED)
        patch.setattr(schedule, "compile_command", lambda job: [sys.executable, str(wrapper), str(step), str(job)])
        report = build(tree, cache)
    (failure,) = report.failures
    assert "ended without a result (killed, " in failure.reason
    assert assemble_packs(report, selection, out, spec=spec) == {}
    assert not out.exists() or not list(out.iterdir())

    report = build(tree, cache)
    assert (report.compiled, report.failures) == (1, ())
    pack = assemble_packs(report, selection, out, spec=spec)["core"]
    (expected,) = build(tree, fresh("clean")).built
    assert (pack.path / f"cubins/{KERNEL}.cubin").read_bytes() == expected.entry.cubin
    assert sorted(path.name for path in (pack.path / "cubins").iterdir()) == [f"{KERNEL}.cubin"]


def test_an_nvcc_that_is_killed_or_fails_leaves_nothing(
    tree: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the system's nvcc: programs that write half of their output and are gone, or fail, and one that works."""
    (good,) = build(tree, cache).built
    program = tmp_path / "bin" / "nvcc"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    spec = load_spec(tree)
    selection = Selection.make(spec, archs="89")

    def run(body: str) -> BuildReport:
        version = "if '--version' in sys.argv: print('release 12.9, V12.9.86'); sys.exit()"
        program.write_text(f"#!{sys.executable}\nimport os, sys\n{version}\ncubin = {good.entry.cubin!r}\n{body}\n")
        program.chmod(0o755)
        return build_report(selection, spec=spec, cache_dir=cache, jobs=1, quiet=True, toolchain="nvcc-12.9")

    cubins = sorted((cache / "cubins").rglob("*"))
    half = "open('out.cubin', 'wb').write(cubin[:100])"
    (failure,) = run(f"{half}; os.kill(os.getpid(), {int(signal.SIGKILL)})").failures
    assert failure.reason == f"nvcc-12.9 was ended by SIGKILL while it compiled {KERNEL}"
    (failure,) = run(f"{half}; print('no memory', file=sys.stderr); sys.exit(3)").failures
    assert (failure.reason, failure.log) == (f"nvcc-12.9 rejects {KERNEL} (exit status 3)", "no memory")
    (failure,) = run(half).failures  # and says that all is well
    assert failure.reason
    (failure,) = run("pass").failures
    assert failure.reason == f"nvcc-12.9 made no cubin of {KERNEL}"
    assert sorted((cache / "cubins").rglob("*")) == cubins
    report = run(f"open('out.cubin', 'wb').write(cubin); print({good.entry.log!r})")
    assert report.failures == () and report.built[0].entry.cubin == good.entry.cubin


def test_a_file_that_grows_too_large_is_named(tree: Path, cache: Path, fresh: Callable[[str], Path]) -> None:
    """A limit on file sizes, which every user can set: between that of a job's file and that of a cubin."""
    (expected,) = build(tree, fresh("clean")).built
    limit = len(expected.entry.cubin) - 1
    limited = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
    limited += "sys.argv = ['ffpa_build', *sys.argv[1:]]; runpy.run_module('ffpa_build', run_name='__main__')"
    arguments = command(tree, cache, "--headdim", "64", "--out", str(tree / "out"))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    result = subprocess.run(
        [sys.executable, "-c", limited, *arguments[3:]], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert f"{KERNEL}: [Errno 27] File too large: " in result.stderr
    assert not list((cache / "cubins").rglob("*.*"))
    assert not (tree / "out").exists()
    (built,) = build(tree, cache).built
    assert built.entry.cubin == expected.entry.cubin


def test_a_full_disk_is_named_and_what_follows_is_right(
    tree: Path, cache: Path, tmp_path: Path, fresh: Callable[[str], Path]
) -> None:
    own = ["unshare", "--mount", "--map-root-user"]
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mount = subprocess.run([*own, "mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no disk of its own: {error}")
    if mount.returncode != 0:
        pytest.skip(f"no disk of its own: {mount.stderr.decode().strip()}")
    arguments = command(tree, disk / "cache", "--out", str(disk / "out"), "--json")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    script = [sys.executable, "-c", FULL_DISK, str(disk), str((cache / "toolchains").resolve())]
    result = subprocess.run([*own, *script, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    steps, _, report = result.stdout.partition("{")
    rows = [line.split("|") for line in steps.splitlines()]
    assert len(rows) > 4, rows  # a full disk stopped several steps of a build
    assert [row[1:] for row in rows[:-1]] == [[row[1], "True", "[]"] for row in rows[:-1]], result.stderr
    assert all(row[1] in ("1", "2") for row in rows[:-1]) and rows[-1][1:] == ["0", "False", "[]"]
    outcome, position = json.JSONDecoder().raw_decode("{" + report)
    assert outcome["failures"] == []
    manifest = json.loads(("{" + report)[position:])
    reference = build(tree, fresh("clean"), head_dims="64,72").built
    assert {row["id"]: row["sha256"] for row in manifest["kernels"]} == {
        built.variant.id: built.entry.facts.sha256 for built in reference
    }
    assert Cache(cache).load(reference[0].entry.key) is None  # nothing but the small disk was written to
