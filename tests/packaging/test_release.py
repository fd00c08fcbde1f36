"""A release: what makes one, and what stops it before its folder is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ffpa_build import locks
from ffpa_build.spec import load_spec
from small_tree import ONE_KERNEL, ROOT


@pytest.fixture(scope="module")
def release() -> ModuleType:
    sys.path.insert(0, str(ROOT / "ci"))
    try:
        import release
    finally:
        sys.path.remove(str(ROOT / "ci"))
    return release


@pytest.fixture
def tree(small_tree: Path, release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small tree that `release` builds one kernel a pack of, with what is installed here."""
    copy = tmp_path / "tree"
    shutil.copytree(small_tree, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "ci", copy / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    for name in [name for name in os.environ if name.startswith(("FFPA_", "ENABLE_FFPA_"))]:
        monkeypatch.delenv(name)
    variables = {**ONE_KERNEL, "FFPA_BUILD_PRESET": "default", "FFPA_BUILD_CACHE": str(tmp_path / "cache")}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for module in (release, release.wheels, release.check_wheels):
        monkeypatch.setattr(module, "TREE", copy)
    monkeypatch.setattr(locks, "environment_differences", lambda spec, toolchain: [])
    # The kernels of the small tree do not multiply, which a look at their instructions would say.
    monkeypatch.setattr(release.check_wheels, "find_nvdisasm", lambda: None)
    running = {f"{sys.version_info.major}.{sys.version_info.minor}": Path(sys.executable)}
    monkeypatch.setattr(release.check_wheels, "interpreters", lambda: running)
    return copy


def test_a_release_has_every_distribution_with_a_kernel_checked_and_summed(
    release: ModuleType, tree: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "release"
    assert release.main(["--out", str(out), "--check-reproducible"]) == 0, capfd.readouterr().err
    names = {path.name for path in out.iterdir()}
    # One arch was selected, of which ffpa-sm120 has no kernel: it is absent, not empty.
    assert {name.split("-")[0] for name in names} == {"ffpa", "ffpa_core", "ffpa_extra", "SHA256SUMS"}
    assert sum(name.endswith(".whl") for name in names) == sum(name.endswith(".tar.gz") for name in names) == 3
    assert subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=out, check=False).returncode == 0
    text = capfd.readouterr().out
    assert text.count(" give the same ") == 3 and "the extras, from these wheels alone: right" in text
    assert [path.name for path in out.parent.iterdir()] == ["release"]


def test_an_sdist_from_which_another_wheel_comes_stops_it(
    release: ModuleType, tree: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hook = tree / "src/ffpa_build/wheel.py"
    text, commit = hook.read_text(), '"commit": sbom.commit(tree)'
    assert text.count(commit) == 1
    hook.write_text(text.replace(commit, '"commit": str((Path(self.root) / "variants").is_dir())'))
    out = tmp_path / "out"
    assert release.main(["--out", str(out)]) == 1
    assert "ffpa-0.1.0.tar.gz: its wheel is not that of the tree: " in (error := capfd.readouterr().err)
    assert "/sboms/ffpa.cdx.json: byte " in error
    assert not out.exists()


def test_an_sdist_that_an_index_refuses_stops_it(release: ModuleType, tmp_path: Path) -> None:
    spec, sdist = load_spec(ROOT), tmp_path / "ffpa_sm120-0.1.0.tar.gz"
    for size in (100_000_000, 100_000_001):
        with sdist.open("wb") as file:
            file.truncate(size)  # a hole, which takes no room
        if size <= 100_000_000:
            release.check_size(sdist, spec)
    with pytest.raises(release.wheels.WheelError, match="allowed are 100 MB"):
        release.check_size(sdist, spec)


def test_an_environment_that_is_not_the_lock_stops_it(
    release: ModuleType, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "environment_differences", lambda spec, toolchain: ["click: 1, locked: 2"])
    assert release.main(["--out", str(tmp_path / "out"), "--toolchain", "nvrtc-13.0"]) == 1
    error = capsys.readouterr().err
    assert "not that of ci/locks/cuda13.txt:\nclick: 1, locked: 2\n" in error
    assert "pip install --require-hashes --only-binary :all: -r ci/locks/cuda13.txt" in error


def test_a_folder_that_holds_something_is_left_alone(
    release: ModuleType, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert release.main(["--out", str(tmp_path / "out")]) == 1
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_published_file_is_whole_or_absent(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "a.whl", tmp_path / "out"
    source.write_bytes(b"whole")
    source.chmod(0o644)
    out.mkdir()

    def half(path: Path, target: str) -> None:
        Path(target).write_bytes(b"wh")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(release.wheels.shutil, "copy2", half)
        with pytest.raises(OSError, match="No space left"):
            release.wheels.publish(source, out)
    assert list(out.iterdir()) == []
    release.wheels.publish(source, out)
    assert (out / "a.whl").read_bytes() == b"whole" and (out / "a.whl").stat().st_mode & 0o777 == 0o644
