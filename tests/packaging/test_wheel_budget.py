"""What a wheel build refuses to hand out."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ffpa_build.errors import SpecError
from ffpa_build.model import MAX_WHEEL_MB
from ffpa_build.spec import load_spec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    found = importlib.util.spec_from_file_location("wheels", ROOT / "ci" / "wheels.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, member: str, size: int) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"\0" * size)
    return path


def test_a_wheel_over_its_budget_fails_its_build(wheels: ModuleType, tmp_path: Path) -> None:
    spec = load_spec(ROOT)
    assert all(pack.wheel_mb <= MAX_WHEEL_MB for pack in spec.packs.values())  # the index takes no larger file
    small = replace(spec.packs["sm120"], wheel_mb=1)
    spec = replace(spec, packs={**spec.packs, "sm120": small})
    wheels.check(wheel(tmp_path, "ffpa_sm120-1-py3-none-any.whl", "a/data", 900_000), spec)
    large = wheel(tmp_path, "ffpa_sm120-2-py3-none-any.whl", "a/data", 2_000_000)
    with pytest.raises(wheels.WheelError, match=r"2-py3-none-any.whl: 2.0 MB, allowed are 1 MB \(wheel_mb of variants"):
        wheels.check(large, spec)
    wheels.check(wheel(tmp_path, "ffpa-2-py3-none-any.whl", "a/data", 2_000_000), spec)


def test_a_budget_is_within_what_the_index_takes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "variants", tmp_path / "variants")
    with (tmp_path / "variants/packs.toml").open("a") as file:
        file.write("wheel_mb = 101\n")  # of the last pack
    with pytest.raises(SpecError, match=r"wheel_mb = 101: 1 to 100, the limit of the package index"):
        load_spec(tmp_path)


def test_host_code_in_a_wheel_for_any_platform_fails_its_build(wheels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelError, match="carries host code: a/_launcher.so"):
        wheels.check(wheel(tmp_path, "a-1-py3-none-any.whl", "a/_launcher.so", 1), load_spec(ROOT))
