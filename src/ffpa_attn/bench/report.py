"""The result of a sweep as JSON and as Markdown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ffpa_attn.bench.runner import Result, Row

SCHEMA = 1


def to_json(
    rows: Sequence[Row], environment: dict[str, str], notes: Sequence[str], missing_peers: dict[str, str]
) -> dict[str, Any]:
    """A JSON-ready document: ``schema environment notes missing_peers rows``; times in ms, rates in 1e12 FLOP/s and
    1e9 byte/s, errors relative. A number that was not measured, or is not finite, is null."""
    return {
        "schema": SCHEMA,
        "environment": dict(environment),
        "notes": list(notes),
        "missing_peers": dict(missing_peers),
        "rows": [_row(row) for row in rows],
    }


def _row(row: Row) -> dict[str, Any]:
    route = row.route
    return {
        **dataclasses.asdict(row.case),
        "flops": row.case.flops,
        "kernel": route.kernel if route else None,
        "route": (route.kernel or route.other) if route else None,
        "reason": route.reason if route else None,
        "ffpa": _result(row.ffpa),
        "sdpa": _result(row.sdpa),
        "speedup_vs_sdpa": _finite(row.speedup),
        "parity_vs_sdpa": _finite(row.parity_vs_sdpa),
        "peers": {name: _result(result) for name, result in row.peers.items()},
    }


def _result(result: Result) -> dict[str, Any]:
    return {
        key: _finite(value) if isinstance(value, float) else value for key, value in dataclasses.asdict(result).items()
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def to_markdown(
    rows: Sequence[Row], environment: dict[str, str], notes: Sequence[str], missing_peers: dict[str, str]
) -> str:
    """The environment as a list, the notes, and one table of all rows."""
    lines = [f"- {key}: `{value}`" for key, value in environment.items()]
    lines += [f"- note: {note}" for note in notes]
    lines += [f"- peer not measured: {name} ({reason})" for name, reason in missing_peers.items()]
    peer_names = list(dict.fromkeys(name for row in rows for name in row.peers))
    header = ["task", "shape", "D", "dtype", "route", "ms", "TFLOP/s", "GB/s", "MHz", "err f32", "err SDPA"]
    header += ["SDPA TFLOP/s", "SDPA MHz", "SDPA err f32", "speedup", *[f"{name} TFLOP/s" for name in peer_names]]
    lines += ["", table(header, [_cells(row, peer_names) for row in rows])]
    failures = _failures(rows)
    if failures:
        lines += ["", "Not measured, or not by a kernel:", "", *failures]
    return "\n".join(lines) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; ``|`` in a cell is escaped."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (header, *rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    padded = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def _cells(row: Row, peer_names: Sequence[str]) -> list[str]:
    case, ours, sdpa = row.case, row.ffpa, row.sdpa
    return [
        case.label,
        case.shape,
        str(case.head_dim),
        case.dtype,
        row.route.text if row.route else "",
        "error" if ours.error else number(ours.ms, 4),
        number(ours.tflops),
        number(ours.gbps),
        number(ours.sm_mhz),
        scientific(ours.error_vs_float32),
        scientific(row.parity_vs_sdpa),
        "error" if sdpa.error else number(sdpa.tflops),
        number(sdpa.sm_mhz),
        scientific(sdpa.error_vs_float32),
        f"{number(row.speedup, 3)}x" if row.speedup is not None else "",
        *[
            "error" if (r := row.peers.get(name)) and r.error else number(r.tflops if r else None)
            for name in peer_names
        ],
    ]


def _failures(rows: Sequence[Row]) -> list[str]:
    """One line a reason, with the cases that it concerns."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        for text in _why(row):
            cases.setdefault(text, []).append(f"{row.case.label} D{row.case.head_dim} {row.case.dtype}")
    return [f"- {text} ({', '.join(dict.fromkeys(names))})" for text, names in cases.items()]


def _why(row: Row) -> list[str]:
    named = [("ffpa", row.ffpa), ("sdpa", row.sdpa), *row.peers.items()]
    texts = [f"{name}: {result.error}" for name, result in named if result.error]
    if row.ffpa.error is None and row.route is not None and row.route.kernel is None and row.route.reason:
        texts.append(f"ffpa took {row.route.text}: {row.route.reason}")
    return texts


def number(value: float | None, digits: int = 4) -> str:
    """``digits`` significant digits without an exponent; empty for None."""
    if value is None:
        return ""
    if not math.isfinite(value) or value == 0:
        return str(value)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def scientific(value: float | None) -> str:
    """Two digits and an exponent; empty for None, ``nan`` where the result held one."""
    return "" if value is None else f"{value:.1e}"
