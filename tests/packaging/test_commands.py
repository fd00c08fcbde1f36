"""The commands that README and CI promise exist under exactly these names."""

from __future__ import annotations

import re
import sys

import pytest

from ffpa_build.spec import load_spec
from small_tree import ROOT, run


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    text = run(ROOT, sys.executable, "-m", "nox", "--list")
    return set(re.findall(r"^[*-] (\S.*?)(?: -> .*)?$", text, re.MULTILINE))


def test_build_has_a_session_for_every_python_and_arch(sessions: set[str]) -> None:
    archs = load_spec(ROOT).archs
    expected = {f"build-{python}(arch='{arch}')" for python in ("3.10", "3.11", "3.12", "3.13") for arch in archs}
    assert "build-3.12(arch='sm_89')" in expected
    assert {name for name in sessions if name.startswith("build")} == expected


def test_the_other_sessions_have_plain_names(sessions: set[str]) -> None:
    assert {"tests", "lint", "demo", "gpu", "wheels"} <= sessions


@pytest.mark.parametrize("file", ["README.md", "docs/building.md", "docs/packaging.md", "docs/usage.md", ".ci/run"])
def test_every_nox_session_that_is_written_down_exists(sessions: set[str], file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    named = re.findall(r"nox -s (?:\"([^\"]+)\"|([\w-]+))", text)
    assert named or file == "docs/usage.md"
    assert {quoted or plain for quoted, plain in named} <= sessions


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "nox -s tests" in readme
    assert "nox -s tests" in (ROOT / ".ci/run").read_text(encoding="utf-8")
