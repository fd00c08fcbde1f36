"""A whole sweep on the CPU through the public API, and what a failing subject does to it."""

import json
import subprocess
import sys

import pytest
import torch

from ffpa_attn.bench import cli, runner, timing
from ffpa_attn.bench.cases import TASKS, Case
from ffpa_attn.bench.runner import run_case
from ffpa_attn.bench.subjects import CUDA_IMPLS, Subject, find_peers, make_backend

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="checks the sweep of a machine without a GPU")

CPU = torch.device("cpu")
CASE = Case("self", 1, 2, 2, 64, 64, 64, "bf16")
SHORT = timing.Budget(warmup_ms=0, measure_ms=0, min_calls=1, max_calls=1)


def test_sweep_writes_json_markdown_and_says_that_it_ran_the_reference(tmp_path, capsys):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "markdown")}
    argv = ["--D", "64", "--N", "128", "--quick", "--no-bwd"]
    assert cli.main([*argv, *(part for name, path in files.items() for part in (f"--{name}", str(path)))]) == 0
    printed = capsys.readouterr()
    assert "no CUDA device: this is the reference implementation on the CPU" in printed.out
    assert files["markdown"].read_text(encoding="utf-8") == printed.out
    document = json.loads(files["json"].read_text(encoding="utf-8"))
    assert {row["task"] for row in document["rows"]} == set(TASKS)
    for row in document["rows"]:
        assert row["ffpa"]["error"] is None and row["kernel"] is None and "reference" in row["route"]
        assert row["ffpa"]["error_vs_float32"] < 5e-3
        assert row["parity_vs_sdpa"] is None if row["dropout_p"] else row["parity_vs_sdpa"] < 1e-2


def test_a_failing_peer_is_a_cell_and_the_rest_is_measured():
    def fails(inputs, case):
        raise RuntimeError("first line\nsecond line")

    row = run_case(CASE, make_backend("reference", "auto"), [Subject("broken", fails)], CPU, SHORT)
    assert row.peers["broken"].error == "RuntimeError: first line" and row.peers["broken"].ms is None
    assert row.ffpa.error is None and row.sdpa.error is None and row.speedup > 0


def test_a_wrong_peer_shows_its_error():
    wrong = Subject("wrong", lambda inputs, case: torch.zeros_like(inputs.q))
    row = run_case(CASE, make_backend("reference", "auto"), [wrong], CPU, SHORT)
    assert row.peers["wrong"].error_vs_float32 == pytest.approx(1.0)


def test_a_case_that_cannot_be_built_is_a_row_with_its_error(monkeypatch):
    def out_of_memory(case, device):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(runner.tensors, "make_inputs", out_of_memory)
    row = run_case(CASE, make_backend("reference", "auto"), [], CPU, SHORT)
    assert row.ffpa.error == "OutOfMemoryError: no memory" and row.route is None


def test_missing_peers_are_named_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    present, missing = find_peers()
    assert {peer.name for peer in present} == {"sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math"}
    assert "does not import" in missing["flash-attn-cute"]


def test_a_case_that_got_another_family_than_asked_for_is_an_error():
    row = run_case(CASE, make_backend("reference", "auto"), [], CPU, SHORT, family="hopper")
    assert "no kernel of the hopper family" in row.ffpa.error and row.ffpa.ms is None and row.sdpa.ms > 0


@pytest.mark.parametrize("impl", CUDA_IMPLS)
def test_every_impl_is_a_valid_backend(impl):
    assert make_backend("cuda", impl) is not None


def test_module_runs_and_shows_help():
    done = subprocess.run(
        [sys.executable, "-m", "ffpa_attn.bench", "--help"], capture_output=True, text=True, check=True
    )
    assert "--cuda-impl" in done.stdout and "overhead" in done.stdout
