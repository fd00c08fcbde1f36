"""Shards compiled apart, their caches joined, are the whole build."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from ffpa_build.errors import SelectionError
from ffpa_build.matrix import expand, shard
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec
from small_tree import ROOT, Build, run

SELECTION = ("--arch", "sm_90a", "--pack", "core", "--headdim", "64,128", "--stages", "3", "--jobs", "1")


@pytest.mark.parametrize("preset", ["default", "release", "emulated"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
def test_shards_are_the_plan_and_share_nothing(preset: str, count: int) -> None:
    spec = load_spec(ROOT)
    whole = expand(spec, Selection.make(spec, preset)).variants
    parts = [shard(whole, index, count) for index in range(1, count + 1)]
    assert sorted(variant.id for part in parts for variant in part) == sorted(variant.id for variant in whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for index in (0, count + 1):
        with pytest.raises(SelectionError, match=f"shard = '{index}/{count}'"):
            shard(whole, index, count)


def test_joined_shards_give_the_bytes_of_the_whole_build(small_tree: Path, tmp_path: Path) -> None:
    def build(cache: str, *options: str) -> int:
        command = [sys.executable, "-m", "ffpa_build", "build", *SELECTION, "--json", "--quiet", *options]
        command += ["--cache-dir", str(tmp_path / cache), "--out", str(tmp_path / f"packs-{cache}")]
        return json.loads(run(small_tree, *command))["compiled"]

    assert build("whole") == 2
    for part in ("1", "2"):
        assert build(part, "--shard", f"{part}/2") == 1
        shutil.copytree(tmp_path / part / "cubins", tmp_path / "joined/cubins", dirs_exist_ok=True)
    assert build("joined") == 0
    files = {
        cache: {p.name: p.read_bytes() for p in (tmp_path / f"packs-{cache}/ffpa_pack_core").iterdir() if p.is_file()}
        for cache in ("whole", "joined")
    }
    assert "manifest.json" in files["whole"]
    assert files["joined"] == files["whole"]


def test_a_wheel_from_joined_shards_is_that_of_a_whole_build(build: Build, small_tree: Path, tmp_path: Path) -> None:
    selection = {"FFPA_DEV_HEADDIMS": "64,128,192", "FFPA_BUILD_STAGES": "2,3"}
    whole = build("ffpa-extra", **selection, FFPA_BUILD_CACHE=str(tmp_path / "whole"))
    joined = tmp_path / "joined"
    for part in ("1", "2"):
        command = [sys.executable, "-m", "ffpa_build", "build", "--pack", "extra", "--shard", f"{part}/2", "--json"]
        command += ["--arch", "sm_90a", "--dtype", "bf16", "--quiet", "--cache-dir", str(tmp_path / part)]
        out = run(small_tree, *command, "--out", str(tmp_path / f"packs-{part}"), **selection)
        assert json.loads(out)["compiled"] == 3
        shutil.copytree(tmp_path / part / "cubins", joined / "cubins", dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in joined.rglob("*") if path.is_file()}
    assert len(before) == 2 * 6
    again = build("ffpa-extra", **selection, FFPA_BUILD_CACHE=str(joined))
    kernels = {path: path.stat().st_mtime_ns for path in (joined / "cubins").rglob("*") if path.is_file()}
    assert kernels == before, "something was compiled again"
    assert again.name == whole.name and again.read_bytes() == whole.read_bytes()
