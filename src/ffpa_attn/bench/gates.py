"""Short problems, which the route's gates decide about: kernels with the gates open, and SDPA, side by side."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ffpa_attn.bench import report
from ffpa_attn.bench.cases import Case
from ffpa_attn.bench.environment import describe_environment
from ffpa_attn.bench.options import head_dims, lengths
from ffpa_attn.bench.subjects import sdpa_subject
from ffpa_attn.bench.tensors import make_inputs
from ffpa_attn.bench.timing import Budget, median_ms

BUDGET = Budget(warmup_ms=3.0, measure_ms=12.0, min_calls=5, max_calls=200)


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``gates``."""
    parser = argparse.ArgumentParser(prog="python -m ffpa_attn.bench gates", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--D", type=head_dims, default=(64, 128, 256, 512, 1024), metavar="LIST", help="head dims, comma list")
    add("--Nq", type=lengths, default=(8, 16, 64, 128, 256, 511), metavar="LIST", help="query lengths, comma list")
    add("--Nkv", type=lengths, default=(64, 128, 256, 511), metavar="LIST", help="key lengths, comma list")
    add("--long", type=int, default=8192, help="keys beside short queries, queries beside few keys (default: 8192)")
    add("--decode-below", type=int, default=8, help="query lengths below it take decode kernels (default: 8)")
    add("--B", type=int, default=1, help="batch (default: 1)")
    add("--H", type=int, default=32, help="heads (default: 32)")
    add("--Hkv", type=int, help="K/V heads (default: as many as query heads)")
    add("--json", type=pathlib.Path, metavar="FILE", help="write the result as JSON")
    return parser


def short_cases(args: argparse.Namespace) -> Iterator[Case]:
    """Short queries against many keys, many queries against few keys, and both short."""
    pairs = [(nq, args.long) for nq in args.Nq]
    pairs += [(args.long, nkv) for nkv in args.Nkv]
    pairs += [(n, n) for n in sorted(set(args.Nq) & set(args.Nkv))]
    for head_dim in args.D:
        for q_len, kv_len in pairs:
            yield Case("short", args.B, args.H, args.Hkv or args.H, q_len, kv_len, head_dim, "bf16")


def main(argv: Sequence[str]) -> int:
    """Measure and print the table. Returns 1 without a CUDA device."""
    parser = make_parser()
    args = parser.parse_args(argv)
    for name in ("long", "decode_below", "B", "H"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least 1")
    if args.Hkv is not None and (args.Hkv < 1 or args.H % args.Hkv):
        parser.error(f"--Hkv {args.Hkv} must divide the number of query heads, {args.H}")
    if not torch.cuda.is_available():
        print("error: gates measures GPU kernels and needs a CUDA device", file=sys.stderr)
        return 1
    ffpa = importlib.import_module("ffpa_attn")
    runtime = ffpa.Runtime(gates=dataclasses.replace(ffpa.Gates.open(), decode_q_len=args.decode_below))
    environment = describe_environment(["gates", *argv])
    measured = [_measure(runtime, case) for case in short_cases(args)]
    print("\n".join(f"- {key}: `{value}`" for key, value in environment.items()) + "\n")
    print(
        report.table(["D", "Nq", "Nkv", "kernel", "ffpa us", "SDPA us", "SDPA / ffpa"], [_cells(m) for m in measured])
    )
    if args.json is not None:
        document = {"schema": report.SCHEMA, "environment": environment, "rows": measured}
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


@torch.no_grad()
def _measure(runtime: Any, case: Case) -> dict[str, Any]:
    device = torch.device("cuda")
    inputs = make_inputs(case, device)
    sdpa = sdpa_subject()
    route = runtime.explain(inputs.q, inputs.k, inputs.v)
    row: dict[str, Any] = {**dataclasses.asdict(case), "kernel": route.kernel, "reason": str(route.reason or "")}
    row["sdpa_ms"] = median_ms(lambda: sdpa.run(inputs, case), device, BUDGET)
    row["ffpa_ms"] = None
    if route.kernel is not None:
        row["ffpa_ms"] = median_ms(lambda: runtime.attention(inputs.q, inputs.k, inputs.v), device, BUDGET)
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    ffpa, sdpa = row["ffpa_ms"], row["sdpa_ms"]
    name = row["kernel"] or row["reason"]
    times = (
        ["-", f"{sdpa * 1e3:.1f}", "-"]
        if ffpa is None
        else [f"{ffpa * 1e3:.1f}", f"{sdpa * 1e3:.1f}", f"{sdpa / ffpa:.2f}x"]
    )
    return [str(row["head_dim"]), str(row["q_len"]), str(row["kv_len"]), name, *times]
