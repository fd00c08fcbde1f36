"""JSON, Markdown and the plot, from rows made by hand."""

import dataclasses
import json

import pytest

from ffpa_attn.bench import plot, report
from ffpa_attn.bench.cases import Case
from ffpa_attn.bench.route import RouteTaken
from ffpa_attn.bench.runner import Result, Row

KERNEL = "native.split_d-sm_90a-bf16-d128-s3"
ENVIRONMENT = {"device": "Some Card", "torch": "2.13.0", "date": "2026-01-02 03:04 UTC", "command": "python -m x"}


@pytest.fixture
def rows() -> list[Row]:
    prefill = Case("self", 1, 4, 4, 1024, 1024, 128, "bf16")
    decode = Case("decode", 1, 8, 1, 1, 1024, 128, "bf16")
    good = Row(
        prefill, RouteTaken(KERNEL), Result(2.0, 100.0, None, 1980.0, 2e-3), Result(5.0, 40.0, None, None, 2e-3), 1e-3
    )
    good.peers["sdpa-math"] = Result(error="RuntimeError: a | b")
    failed = Row(
        decode, RouteTaken(None, "sdpa", "Nkv is short"), Result(error="ValueError: no"), Result(1.0, 2.0, 3.0)
    )
    return [good, failed]


def test_json_has_the_schema_and_survives_a_round_trip(rows):
    document = json.loads(json.dumps(report.to_json(rows, ENVIRONMENT, ["n"], {"x": "y"}), allow_nan=False))
    assert set(document) == {"schema", "environment", "notes", "missing_peers", "rows"}
    assert document["schema"] == report.SCHEMA and document["environment"] == ENVIRONMENT
    good, failed = document["rows"]
    assert set(good) == set(failed)
    assert (good["kernel"], good["route"], good["reason"]) == (KERNEL, KERNEL, None)
    assert good["speedup_vs_sdpa"] == 2.5 and good["parity_vs_sdpa"] == 1e-3
    numbers = {"ms": 2.0, "tflops": 100.0, "gbps": None, "sm_mhz": 1980.0, "error_vs_float32": 2e-3}
    assert good["ffpa"] == {**numbers, "error": None}
    assert good["flops"] == 4 * 4 * 1024 * 1024 * 128
    assert failed["kernel"] is None and failed["route"] == "sdpa" and failed["reason"] == "Nkv is short"
    assert failed["ffpa"]["error"] == "ValueError: no" and failed["speedup_vs_sdpa"] is None


def test_not_a_number_becomes_null(rows):
    rows[0].ffpa.error_vs_float32 = float("nan")
    document = report.to_json(rows, {}, [], {})
    assert document["rows"][0]["ffpa"]["error_vs_float32"] is None
    assert "nan" in report.to_markdown(rows, {}, [], {})


def test_markdown_table_is_rectangular_and_names_route_and_errors(rows):
    text = report.to_markdown(rows, ENVIRONMENT, ["small sizes"], {"flash-attn-cute": "not installed"})
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 4 and len({len(line) for line in table}) == 1
    assert KERNEL in table[2] and "2.50x" in table[2]
    assert "sdpa" in table[3] and "error" in table[3]
    assert "- device: `Some Card`" in text and "- note: small sizes" in text
    assert "- peer not measured: flash-attn-cute (not installed)" in text
    assert "- ffpa: ValueError: no (decode 8:1 D128 bf16)" in text
    assert "sdpa-math: RuntimeError: a | b" in text


def test_a_reason_shared_by_cases_is_given_once_with_their_names(rows):
    for row, dim in zip(rows, (64, 128), strict=True):
        row.case = dataclasses.replace(row.case, task="self", head_dim=dim)
        row.route, row.ffpa = RouteTaken(None, "sdpa", "Nkv is short"), Result(1.0, 2.0)
    text = report.to_markdown(rows, {}, [], {})
    assert text.count("ffpa took sdpa: Nkv is short") == 1
    assert "(self D64 bf16, self D128 bf16)" in text


def test_pipes_in_cells_do_not_break_the_table():
    lines = report.table(["a"], [["x | y"]]).splitlines()
    assert lines[2] == r"| x \| y |"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(123.456, 4, "123.5"), (0.01234, 3, "0.0123"), (99999.0, 4, "99999"), (None, 4, ""), (0.0, 4, "0.0")],
)
def test_numbers_have_significant_digits(value, digits, text):
    assert report.number(value, digits) == text


def test_plot_is_a_png(rows, tmp_path):
    pytest.importorskip("matplotlib", reason="the plot is an optional feature of matplotlib")
    target = tmp_path / "plot.any"
    plot.save_plot(rows, ENVIRONMENT, target)
    assert target.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_plot_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(plot.PlotUnavailableError, match="pip install matplotlib"):
        plot.require_matplotlib()
