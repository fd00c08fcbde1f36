"""Toolchains are installed once, whole, and only with the bytes that are pinned."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from build_tree import REPOSITORY

from ffpa_build import compiler, toolchain
from ffpa_build.errors import ToolchainError
from ffpa_build.spec import load_spec
from ffpa_build.toolchain import Toolchain, identity, locate, resolve

DEFAULT = load_spec(REPOSITORY).default_toolchain
# The smallest of the pinned packages stands for a whole toolchain.
SMALL = replace(DEFAULT, name="small", requirements=DEFAULT.requirements[2:], hashes=DEFAULT.hashes[2:], library="cuda")


@pytest.fixture(autouse=True)
def nothing_in_the_running_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_running_site", lambda declared: None)


def test_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve(SMALL, tmp_path)
    assert (Path(first.site) / "cuda" / "pathfinder").is_dir()
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("installed again"))
    assert resolve(SMALL, tmp_path) == first == locate(SMALL, tmp_path)


def test_other_bytes_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"(?si)small cannot be installed.*hash"):
        resolve(replace(SMALL, hashes=(("0" * 64,),)), tmp_path)
    assert list((tmp_path / "toolchains").iterdir()) == []


def test_an_unfinished_or_older_folder_is_replaced(tmp_path: Path) -> None:
    folder = Path(locate(SMALL, tmp_path).site)
    folder.mkdir(parents=True)
    (folder / "left-over").touch()
    site = Path(resolve(SMALL, tmp_path).site)
    assert site == folder
    assert not (site / "left-over").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_identity_is_the_same_wherever_the_toolchain_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_running_site", lambda declared: tmp_path)
    assert locate(DEFAULT, tmp_path / "cache").identity == identity(DEFAULT)
    monkeypatch.setattr(toolchain, "_running_site", lambda declared: None)
    assert locate(DEFAULT, tmp_path / "cache").identity == identity(DEFAULT)


def test_nvcc_of_another_version_on_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = load_spec(REPOSITORY).toolchains["nvcc-13.0"]
    program = tmp_path / "nvcc"
    program.write_text(f"#!{sys.executable}\nprint('Cuda compilation tools, release 13.0, V13.0.88')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert locate(nvcc, tmp_path).nvcc == str(program)
    program.write_text(program.read_text().replace("13.0.88", "13.1.80"))
    assert locate(nvcc, tmp_path).nvcc != str(program)


def test_an_nvcc_that_does_not_answer_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(toolchain.subprocess, "run", hang)
    assert toolchain._nvcc_version("nvcc") is None


def test_an_nvcc_of_the_system_alone_is_taken_from_path_or_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = load_spec(REPOSITORY).toolchains["nvcc-12.9"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="nvcc-12.9 is nvcc 12.9.86 of the system, but there is no nvcc on PATH"):
        resolve(nvcc, tmp_path)
    program = tmp_path / "nvcc"
    program.write_text(f"#!{sys.executable}\nprint('Cuda compilation tools, release 12.9, V12.9.41')\n")
    program.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"nvcc is 12.9.41; put that nvcc on PATH"):
        resolve(nvcc, tmp_path)
    program.write_text(program.read_text().replace("12.9.41", "12.9.86"))
    assert resolve(nvcc, tmp_path).nvcc == str(program)
    program.unlink()
    assert locate(nvcc, tmp_path).identity == "nvcc 12.9.86 on PATH"
    assert not (tmp_path / "toolchains").exists()


def test_running_environment_counts_only_with_exactly_the_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    import click

    there = replace(
        SMALL, requirements=("click==" + __import__("importlib.metadata").metadata.version("click"),), library="click"
    )
    assert toolchain._running_site(there) == Path(click.__file__).resolve().parents[1]
    assert toolchain._running_site(replace(there, requirements=("click==0.0.1",))) is None


@pytest.mark.parametrize(("loaded", "accepted"), [((12, 9), True), ((12, 8), False), ((13, 9), False)])
def test_an_nvrtc_of_another_version_than_the_pinned_one_is_refused(
    loaded: tuple[int, int], accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that the process had loaded before."""

    class Reached(Exception):
        pass

    def create(*arguments: object) -> None:
        raise Reached

    nvrtc = SimpleNamespace(
        nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0), nvrtcVersion=lambda: (0, *loaded), nvrtcCreateProgram=create
    )
    monkeypatch.setattr(compiler, "_load_nvrtc", lambda toolchain: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", nvrtc)
    toolchain = Toolchain("nvrtc-12.9", "nvrtc", "12.9.86", "", "", "")
    expected = Reached if accepted else ToolchainError
    text = None if accepted else rf"NVRTC {loaded[0]}\.{loaded[1]} was loaded instead of 12\.9\.86"
    with pytest.raises(expected, match=text):
        compiler.compile_cubin("", {}, "sm_90a", toolchain, "x")
