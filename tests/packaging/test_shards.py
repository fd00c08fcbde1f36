"""Shards compiled apart, their caches joined, are the whole build."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from small_tree import run

SELECTION = ("--arch", "sm_90a", "--pack", "core", "--headdim", "64,128", "--stages", "3", "--jobs", "1")


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
