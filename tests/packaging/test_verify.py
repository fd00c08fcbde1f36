"""`python -m ffpa_build verify`: a wheel against the tree that it claims to come from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_check_wheels import CUBIN, MANIFEST

from small_tree import members, rewrite

ID = "extra.tiny-sm_90a-bf16-d64-s3"
Verify = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def verify(small_tree: Path, tmp_path: Path) -> Verify:
    """verify(wheel, *options, tree=...) -> the finished command, which had an empty cache unless told otherwise."""

    def verify(wheel: Path, *options: str, tree: Path | None = None) -> subprocess.CompletedProcess[str]:
        source = tree or small_tree
        command = [sys.executable, "-m", "ffpa_build", "verify", str(wheel), *options]
        if "--fresh" not in options:
            command += ["--cache-dir", str(tmp_path / "cache")]
        environment = {**os.environ, "PYTHONPATH": str(source / "src")}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return verify


@pytest.mark.parametrize("options", [(), ("--fresh",)])
def test_a_wheel_of_the_tree_matches(verify: Verify, extra: Path, options: tuple[str, ...]) -> None:
    result = verify(extra, *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"{ID}: matches",
        "1 of 1 kernels match, compiled with nvrtc-12.9; the source digest is this tree's",
    ]


def test_json_says_the_same(verify: Verify, extra: Path) -> None:
    report = json.loads(verify(extra, "--json").stdout)
    assert report["ok"] is True and report["verdicts"] == [{"kernel": ID, "outcome": "matches"}]


def test_a_changed_cubin_does_not_match(verify: Verify, extra: Path, tmp_path: Path) -> None:
    cubin = bytearray(members(extra)[CUBIN])
    cubin[-1] ^= 1
    rewrite(extra, tmp_path / extra.name, {CUBIN: bytes(cubin)})
    result = verify(tmp_path / extra.name)
    assert result.returncode == 1
    assert f"{ID}: differs: " in result.stdout and "0 of 1 kernels match" in result.stdout


def test_a_missing_cubin_does_not_match(verify: Verify, extra: Path, tmp_path: Path) -> None:
    rewrite(extra, tmp_path / extra.name, {CUBIN: None})
    result = verify(tmp_path / extra.name)
    assert result.returncode == 1 and f"{ID}: missing from the wheel" in result.stdout


def test_other_sources_do_not_match(verify: Verify, extra: Path, small_tree: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(small_tree, tree, ignore=shutil.ignore_patterns("__pycache__"))
    header = tree / "csrc/kernels/tiny/tiny.cuh"
    header.write_text(header.read_text().replace("= V::kHeadDim;", "= V::kHeadDim + 1;"))
    result = verify(extra, tree=tree)
    assert result.returncode == 1
    assert f"{ID}: differs: " in result.stdout and "the source digest is NOT this tree's" in result.stdout


def test_an_unknown_compiler_and_a_wheel_without_kernels_are_errors(
    verify: Verify, extra: Path, tmp_path: Path
) -> None:
    manifest = json.loads(members(extra)[MANIFEST])
    manifest["compiler"]["version"] = "1.2.3"
    rewrite(extra, tmp_path / extra.name, {MANIFEST: json.dumps(manifest).encode()})
    result = verify(tmp_path / extra.name)
    assert result.returncode == 2 and "compiled by nvrtc 1.2.3; this tree has: " in result.stderr
    rewrite(extra, tmp_path / extra.name, {MANIFEST: None})
    result = verify(tmp_path / extra.name)
    assert result.returncode == 2 and "0 manifests; a wheel with kernels has one" in result.stderr
