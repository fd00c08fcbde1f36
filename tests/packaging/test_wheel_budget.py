"""What a wheel build refuses to hand out."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

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


def test_a_wheel_over_the_budget_fails_its_build(
    wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wheels.SIZE_BUDGET_MB <= 100  # the index takes no larger file
    monkeypatch.setattr(wheels, "SIZE_BUDGET_MB", 1)
    wheels.check(wheel(tmp_path, "a-1-py3-none-any.whl", "a/data", 900_000))
    with pytest.raises(wheels.WheelError, match=r"b-1-py3-none-any.whl: 2 MB, allowed are 1 MB"):
        wheels.check(wheel(tmp_path, "b-1-py3-none-any.whl", "b/data", 2_000_000))


def test_host_code_in_a_wheel_for_any_platform_fails_its_build(wheels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelError, match="carries host code: a/_launcher.so"):
        wheels.check(wheel(tmp_path, "a-1-py3-none-any.whl", "a/_launcher.so", 1))
