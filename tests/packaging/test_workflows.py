"""The workflows of CI: made from the tables, valid, and complete in what they compile."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ffpa_build import generated, workflows
from ffpa_build.api import Selection, expand, shard
from ffpa_build.cli import main
from ffpa_build.spec import load_spec
from small_tree import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: nox -s workflows has it")
pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed: nox -s workflows has it")

FILES = ("ci.yml", "release.yml")


def validate(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def jobs(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))["jobs"]


def commands(name: str) -> list[str]:
    return [step["run"] for job in jobs(name).values() for step in job["steps"] if "run" in step]


def test_the_files_match_the_tables() -> None:
    assert generated.differences(load_spec(ROOT), workflows.render) == []


@pytest.mark.parametrize("name", FILES)
def test_a_workflow_has_the_schema_of_workflows(name: str) -> None:
    result = validate(ROOT / ".github/workflows" / name)
    assert result.returncode == 0, result.stdout


def test_a_workflow_with_a_mistake_is_refused(tmp_path: Path) -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    file = tmp_path / "release.yml"
    file.write_text(text.replace("runs-on:", "run-on:"))
    assert validate(file).returncode == 1


def test_the_shards_are_the_release_preset_with_nothing_twice() -> None:
    spec = load_spec(ROOT)
    compiled = []
    for row in jobs("release.yml")["kernels"]["strategy"]["matrix"]["include"]:
        selection = Selection.make(spec, workflows.PRESET, archs=row["arch"], packs=row["pack"])
        part = shard(expand(spec, selection).variants, row["part"], row["parts"])
        assert 0 < len(part) <= workflows.KERNELS_PER_SHARD
        compiled += [variant.id for variant in part]
    whole = [variant.id for variant in expand(spec, Selection.make(spec, workflows.PRESET)).variants]
    assert sorted(compiled) == sorted(whole)


def test_every_distribution_is_made() -> None:
    spec = load_spec(ROOT)
    text = "\n".join(commands("release.yml"))
    for pack in spec.packs.values():
        assert f"packages/{pack.distribution}" in text or f"--dist {pack.distribution}" in text
    assert "--dist ffpa " in text


def test_what_the_workflows_call_exists() -> None:
    (build,) = (text for text in commands("release.yml") if "ffpa_build build" in text)
    known = {option for parameter in main.commands["build"].params for option in parameter.opts}
    named = set(re.findall(r"--[a-z-]+", build))
    assert {"--pack", "--arch", "--shard", "--cache-dir"} <= named <= known
    (lock,) = {word for text in commands("release.yml") for word in text.split() if word.startswith("ci/locks/")}
    assert (ROOT / lock).is_file()
    assert ".ci/run" in commands("ci.yml")
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
