"""The command line answers, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ffpa_build.cli import main


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_plan_prints_counts_and_what_is_left_out(tree: Path) -> None:
    result = call("plan", "--root", tree, "--features", "bias", "--pack", "core")
    assert result.exit_code == 0
    assert "core  (ffpa-core)  2 kernels" in result.output
    assert "features plain,bias" in result.output
    assert "tiny.copy                    sm_90a   every variant: pack extra is not selected" in result.output


def test_plan_as_json_lists_every_kernel(tree: Path) -> None:
    data = json.loads(call("plan", "--root", tree, "--arch", "ada", "--headdim", "all", "--json").output)
    assert [kernel["id"] for kernel in data["kernels"]] == [f"tiny.copy-sm_89-bf16-d{d}-s2" for d in (64, 128, 768)]
    assert data["versions"] == {"core": "0.1.0"}


def test_plan_of_a_shard_is_part_of_the_whole(tree: Path) -> None:
    outputs = [call("plan", "--root", tree, "--shard", f"{i}/2", "--json").output for i in (1, 2)]
    assert [[k["id"] for k in json.loads(output)["kernels"]] for output in outputs] == [
        ["tiny.copy-sm_89-bf16-d64-s2"],
        ["tiny.copy-sm_90a-bf16-d64-s2"],
    ]


@pytest.mark.parametrize("part", ["2", "0/2", "3/2", "a/b", "\u00b2/2"])
def test_a_wrong_shard_is_named(tree: Path, part: str) -> None:
    result = call("plan", "--root", tree, "--shard", part)
    assert result.exit_code == 2
    assert "error: shard = " in result.output


def test_show_before_and_after_a_build(tree: Path, cache: Path) -> None:
    kernel = "tiny.copy-sm_89-bf16-d64-s2"
    before = call("show", kernel, "--root", tree, "--cache-dir", cache)
    assert before.exit_code == 0
    assert "FFPA_KERNEL(tiny_copy_sm_89_bf16_d64_s2, tiny::Copy<Variant>)" in before.output
    assert "flags: -arch=sm_89 -std=c++17" in before.output
    assert before.output.rstrip().endswith("not built")
    assert call("build", "--root", tree, "--cache-dir", cache, "--arch", "89", "-q").exit_code == 0
    facts = json.loads(call("show", kernel, "--root", tree, "--cache-dir", cache, "--json").output)
    assert facts["facts"]["smem_bytes"] == 2048
    assert facts["compile"]["peak_rss_mib"] > 10


def test_every_command_finds_the_cache_and_the_compiler_by_their_variables(
    tree: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = "tiny.copy-sm_89-bf16-d64-s2"
    monkeypatch.setenv("FFPA_BUILD_CACHE", str(cache))
    assert call("build", "--root", tree, "--arch", "89", "-q", "--out", tmp_path / "packs").exit_code == 0
    assert json.loads(call("show", kernel, "--root", tree, "--json").output)["facts"] is not None
    monkeypatch.setenv("FFPA_BUILD_TOOLCHAIN", "nvcc-13.0")
    assert json.loads(call("show", kernel, "--root", tree, "--json").output)["toolchain"].startswith("nvcc ")
    (cache / "toolchains").unlink()  # a link to what other tests use
    call("clean", "--root", tree, "--out", tmp_path / "packs", "--cache")
    assert not (cache / "cubins").exists()


@pytest.mark.parametrize(
    "kernel",
    [
        "tiny.copy-sm_90a-fp16-d72-s3-accf16-bias-dropout",
        "tiny.copy-sm_89-bf16-d64-s2-for_sm_90a",
    ],
)
def test_show_finds_kernels_that_no_preset_selects(tree: Path, cache: Path, kernel: str) -> None:
    assert f"// {kernel}\n" in call("show", kernel, "--root", tree, "--cache-dir", cache).output


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("tiny", "<family>.<impl>-<arch>"),
        ("tiny.none-sm_89-bf16-d64-s2", "impl: allowed: tiny.copy"),
        ("tiny.copy-sm_70-bf16-d64-s2", "arch = 'sm_70'"),
        ("tiny.copy-sm_89-bf16-d65-s2", "headdim = 65"),
        ("tiny.copy-sm_89-bf16-d64-s2-bias-bias32", "no such variant"),
    ],
)
def test_show_names_what_is_wrong_with_an_id(tree: Path, cache: Path, kernel: str, message: str) -> None:
    result = call("show", kernel, "--root", tree, "--cache-dir", cache)
    assert result.exit_code == 2
    assert message in result.output


def test_clean_removes_what_was_built_and_nothing_else(tree: Path, tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "own-cache"
    for name in ("out/ffpa_pack_core", "out/mine", "own-cache/cubins", "own-cache/mine"):
        (tmp_path / name).mkdir(parents=True)
    assert call("clean", "--root", tree, "--out", out, "--cache-dir", cache).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["mine"]
    assert (cache / "cubins").is_dir()
    call("clean", "--root", tree, "--out", out, "--cache-dir", cache, "--cache")
    assert sorted(path.name for path in cache.iterdir()) == ["mine"]
