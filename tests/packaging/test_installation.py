"""What pip and the runtime make of wheels that do not belong together, and of the extras of `ffpa`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ffpa_build.inspect_wheel import Wheel
from ffpa_build.spec import load_spec
from small_tree import ROOT, Build, members, rewrite


@pytest.fixture(scope="module")
def installation() -> ModuleType:
    sys.path.insert(0, str(ROOT / "ci"))
    try:
        import installation
    finally:
        sys.path.remove(str(ROOT / "ci"))
    return installation


@pytest.fixture(scope="module")
def meta(build: Build) -> Path:
    """The meta distribution of the small tree."""
    return build("ffpa")


@pytest.fixture(scope="module")
def newer_pack(small_tree: Path, build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the further pack, of another version than core."""
    tree = tmp_path_factory.mktemp("newer") / "tree"
    shutil.copytree(small_tree, tree, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "VERSION").write_text("7.8.9\n")
    return build("ffpa-extra", source=tree / "packages/ffpa-extra", PYTHONPATH=str(tree / "src"))


def with_metadata(wheel: Path, folder: Path, change: Callable[[str], str]) -> Path:
    """A copy of a wheel with another METADATA."""
    (name,) = (name for name in members(wheel) if name.endswith(".dist-info/METADATA"))
    text = members(wheel)[name].decode()
    assert change(text) != text
    folder.mkdir(exist_ok=True)
    rewrite(wheel, folder / wheel.name, {name: change(text).encode()})
    return folder / wheel.name


def test_every_extra_resolves_from_the_wheels_alone(
    installation: ModuleType, meta: Path, core: Path, extra: Path, small_tree: Path
) -> None:
    """Also: `ffpa[sm120]` fails and names ffpa-sm120, of which there is no wheel, and `ffpa[fp4]` warns."""
    assert installation.extra_differences([meta, core, extra], load_spec(small_tree)) == []


def test_wrong_extras_are_found(
    installation: ModuleType, meta: Path, core: Path, extra: Path, small_tree: Path, tmp_path: Path
) -> None:
    def change(text: str) -> str:
        # Two extras that bring core instead of their pack, and one more of a pack that the tables do not have.
        for name in ("ffpa-extra", "ffpa-sm120"):
            text = text.replace(f"Requires-Dist: {name}==", "Requires-Dist: ffpa-core==")
        return text.replace("Provides-Extra: extra", "Provides-Extra: fp4\nProvides-Extra: extra")

    wrong = with_metadata(meta, tmp_path / "wrong", change)
    found = "\n".join(installation.extra_differences([wrong, core, extra], load_spec(small_tree)))
    for message in (
        "ffpa[extra]: brings {'ffpa': '0.1.0', 'ffpa-core': '0.1.0+sm90a'}, must bring ",
        "ffpa[sm120]: ffpa-sm120 is not there, and pip does not say so",
        "pip does not warn of the unknown extra 'fp4'",
    ):
        assert message in found
    assert "ffpa[sm90]" not in found


def test_a_pack_of_another_version_is_not_installed_by_its_pin(
    installation: ModuleType, core: Path, newer_pack: Path, tmp_path: Path
) -> None:
    index, site = tmp_path / "index", tmp_path / "site"
    index.mkdir()
    for wheel in (core, newer_pack):
        shutil.copy2(wheel, index)
    installation.stand_ins([Wheel.read(core)], index)
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(index), "--target", str(site)]
    result = subprocess.run([*command, "ffpa-core", "ffpa-extra"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "ffpa-extra 7.8.9 depends on ffpa-core==7.8.9" in result.stdout + result.stderr
    assert not site.exists()


def test_a_pack_of_another_version_is_turned_away_where_pip_was_not_asked(
    installation: ModuleType, core: Path, newer_pack: Path
) -> None:
    (found,) = installation.installation_differences([core, newer_pack])
    assert "TURNED AWAY" in found
    assert "version 7.8.9 does not fit ffpa-core 0.1.0+sm90a; the two must be of one version: " in found
    assert "install ffpa-extra==0.1.0 or ffpa-core==7.8.9" in found


def test_the_pythons_of_the_machine_are_found_and_the_running_one_is_among_them(installation: ModuleType) -> None:
    found = installation.interpreters()
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in found
    assert set(found) <= {*installation.PYTHONS, f"{sys.version_info.major}.{sys.version_info.minor}"}
    assert all(path.is_file() for path in found.values())
