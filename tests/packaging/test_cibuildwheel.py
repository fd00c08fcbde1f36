"""The configuration of cibuildwheel: read by cibuildwheel, and in step with ci/wheels.py."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ffpa_build.environment import VARIABLES
from small_tree import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest.importorskip("cibuildwheel", reason="cibuildwheel is not installed: nox -s cibuildwheel has it")

CONFIG = ROOT / "ci/cibuildwheel.toml"


def identifiers(config: Path, platform: str = "linux") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cibuildwheel", "packages/ffpa-core", "--config-file", str(config)]
    command += ["--print-build-identifiers", "--platform", platform]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return tomllib.loads(CONFIG.read_text())["tool"]["cibuildwheel"]


@pytest.fixture(scope="module")
def wheels() -> Any:
    """ci/wheels.py as a module."""
    found = importlib.util.spec_from_file_location("wheels", ROOT / "ci/wheels.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("platform", "built"),
    [("linux", ["cp312-manylinux_x86_64", "cp312-manylinux_aarch64"]), ("windows", ["cp312-win_amd64"])],
)
def test_one_python_builds_for_each_architecture(platform: str, built: list[str]) -> None:
    result = identifiers(CONFIG, platform)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == built


def test_a_misspelt_option_is_refused(tmp_path: Path) -> None:
    text = CONFIG.read_text()
    assert "repair-wheel-command" in text
    config = tmp_path / "cibuildwheel.toml"
    config.write_text(text.replace("repair-wheel-command", "repair-wheel-comand"))
    result = identifiers(config)
    assert result.returncode != 0
    assert "repair-wheel-comand" in result.stdout + result.stderr


def test_it_repairs_and_dates_wheels_as_the_tree_does(settings: dict[str, Any], wheels: Any) -> None:
    excluded = re.findall(r"--exclude (\S+)", settings["linux"]["repair-wheel-command"])
    assert tuple(excluded) == wheels.FOREIGN_LIBRARIES
    assert settings["environment"]["SOURCE_DATE_EPOCH"] == wheels.SOURCE_DATE_EPOCH
    assert settings["environment"]["PIP_CONSTRAINT"].endswith("/ci/build-constraints.txt")


def test_it_sets_variables_that_a_build_reads(settings: dict[str, Any]) -> None:
    named = {name for name in settings["environment"] if "FFPA" in name}
    assert named == {"FFPA_BUILD_PRESET", "FFPA_BUILD_CACHE"}
    assert named <= {flag.variable for flag in VARIABLES}


def test_windows_gets_the_same_variables_without_a_shell(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cibuildwheel.environment import parse_environment

    def evaluated(table: dict[str, str]) -> dict[str, str]:
        text = " ".join(f'{name}="{value}"' for name, value in table.items())
        return parse_environment(text).as_dictionary({"PATH": os.environ["PATH"]})

    monkeypatch.chdir(ROOT)
    linux, windows = evaluated(settings["environment"]), evaluated(settings["windows"]["environment"])
    assert windows.pop("PIP_CONSTRAINT") == Path(linux.pop("PIP_CONSTRAINT")).as_uri()
    assert windows == linux
