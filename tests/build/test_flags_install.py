"""build.sh and `install`: what would run, and what a dry run leaves alone. The real installs are in tests/packaging."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from build_tree import REPOSITORY

from ffpa_build import install
from ffpa_build.errors import BuildError, SelectionError
from ffpa_build.spec import load_spec

CORE = str(REPOSITORY / "packages/ffpa-core")
META = str(REPOSITORY / "packages/ffpa")
SM120 = str(REPOSITORY / "packages/ffpa-sm120")


def build_sh(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FFPA_", "ENABLE_FFPA_"))}
    return subprocess.run(
        ["bash", str(REPOSITORY / "build.sh"), *arguments],
        env={**inherited, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def dry_run(*arguments: str, **environment: str) -> tuple[dict[str, str], list[list[str]], str]:
    """The variables and the commands that --dry-run prints, and all of the output."""
    result = build_sh("--dry-run", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    commands = [shlex.split(line) for line in result.stdout.splitlines() if line.startswith("env ")]
    variables = [
        dict(word.split("=", 1) for word in words[: words.index(sys.executable)] if "=" in word) for words in commands
    ]
    for row in variables:
        row.pop("PYTHONPATH", None)
    assert all(row == variables[0] for row in variables)
    return variables[0], [words[words.index(sys.executable) + 1 :] for words in commands], result.stdout


def test_a_dry_run_prints_the_plan_and_both_commands(tmp_path: Path) -> None:
    variables, (compile_command, pip), text = dry_run(
        *("--arch", "ada", "--headdim", "64,512", "--stages", "3", "-j", "2", "--ptxas-verbose"),
        *("--cache-dir", str(tmp_path / "cache")),
        ENABLE_FFPA_CUDA_INPUT_FP16="1",
    )
    # 2 dtypes, 2 head dims, 4 feature sets
    assert re.search(r"native\.split_d +sm_89 +16 ", text)
    assert variables["FFPA_BUILD_ARCH"] == "sm_89"
    assert variables["FFPA_BUILD_DTYPES"] == "bf16,fp16"
    assert variables["FFPA_BUILD_JOBS"] == "2"
    assert variables["FFPA_BUILD_CACHE"] == str(tmp_path / "cache")
    assert "-u ENABLE_FFPA_CUDA_INPUT_FP16" in text
    assert compile_command[:3] == ["-m", "ffpa_build", "build"] and "--ptxas-verbose" in compile_command
    assert pip == ["-m", "pip", "install", CORE, META]
    assert not (tmp_path / "cache").exists()


def test_the_arch_that_the_specification_shows_brings_runtime_and_pack() -> None:
    _, (_, pip), _ = dry_run("--arch", "sm_120f", "--ext", "all", "--headdim", "default", "--jobs", "64")
    assert pip[3:] == [CORE, SM120, META]


def test_only_the_runtime_is_editable() -> None:
    _, (_, pip), _ = dry_run("--arch", "120", "--editable", "--no-isolation")
    assert pip == ["-m", "pip", "install", "--no-build-isolation", "--editable", CORE, SM120, META]


def test_without_kernels_nothing_is_compiled() -> None:
    for variables, (pip,), text in (dry_run("--ext", "none"), dry_run(ENABLE_FFPA_CUDA_IMPL="0")):
        assert variables["FFPA_BUILD_EXT"] == "none"
        assert pip[:3] == ["-m", "pip", "install"] and pip[3:] == [CORE, META]
        assert "runtime and launcher only" in text


def test_clean_names_what_it_would_remove_and_a_dry_run_removes_nothing(tmp_path: Path) -> None:
    cubins = tmp_path / "cubins"
    cubins.mkdir()
    _, _, text = dry_run("--clean", "--arch", "89", "--cache-dir", str(tmp_path))
    assert f"remove {cubins}\n" in text
    assert f"remove {REPOSITORY / 'dist'}\n" in text
    assert cubins.is_dir()


def test_clean_removes_outputs_and_keeps_the_rest(tree: Path, tmp_path: Path) -> None:
    from ffpa_build.outputs import everything, remove

    cache = tmp_path / "cache"
    launcher = tree / "src/ffpa_attn/_launcher.so"
    for folder in (cache / "cubins", cache / "toolchains", tree / "dist", tree / "build/packs/ffpa_pack_core"):
        folder.mkdir(parents=True)
    launcher.parent.mkdir(parents=True)
    launcher.touch()
    removed = list(remove(everything(load_spec(tree), cache)))
    assert removed == [tree / "build/packs/ffpa_pack_core", tree / "dist", launcher, cache / "cubins"]
    assert not any(path.exists() for path in removed)
    assert (cache / "toolchains").is_dir() and (tree / "variants").is_dir()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/shm is of Linux")
def test_shm_puts_the_cache_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, _, _ = dry_run("--shm", "--arch", "89")
    assert variables["FFPA_BUILD_CACHE"].startswith("/dev/shm/")
    monkeypatch.setattr(install, "SHARED_MEMORY", tmp_path)
    folder = install.shared_memory_cache(None, create=True)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert install.shared_memory_cache(None, create=True) == folder
    folder.chmod(0o777)
    with pytest.raises(BuildError, match="belongs to this user alone"):
        install.shared_memory_cache(None, create=True)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(BuildError, match="belongs to this user alone"):
        install.shared_memory_cache(None, create=True)


def test_shm_is_for_linux_and_contradicts_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SelectionError, match="--shm contradicts --cache-dir = '/x'"):
        install.shared_memory_cache("/x", create=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SelectionError, match="--shm needs /dev/shm"):
        install.shared_memory_cache(None, create=False)


def test_a_wrong_value_stops_before_anything_runs() -> None:
    result = build_sh("--arch", "sm_70")
    assert result.returncode == 2
    assert "error: --arch: arch = 'sm_70': allowed: all; sm_80" in result.stderr
    assert result.stdout == ""


def test_a_failing_step_ends_the_install(capfd: pytest.CaptureFixture[str]) -> None:
    bad = (sys.executable, "-c", "import os, sys; print(os.environ['FFPA_BUILD_ARCH']); sys.exit(3)")
    steps = install.Steps((), bad, (sys.executable, "-c", "print('pip')"), {"FFPA_BUILD_ARCH": "sm_89"})
    assert install.run(steps, dry_run=False) == 3
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == "sm_89"


def test_a_python_without_the_requirements_is_told_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n")
    result = build_sh("--dry-run", PYTHONPATH=str(tmp_path))
    # src/ comes first on the path, click is found in the folder after it
    assert result.returncode == 1
    assert "has no module 'click'" in result.stderr and "pip install --group build" in result.stderr
