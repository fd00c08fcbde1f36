"""Host time of a whole eager no-grad attention call on a problem so small that the GPU never holds the host up.

Calls are enqueued in batches with a synchronise between batches, never inside one: a batch stays below the depth of
the driver's launch queue, so the clock sees what the host does and not what the device does. A shared host runs at
another speed from one moment to the next, by half and more: the batches are spread over seconds, and a call of an empty
function beside the others shows at which speed it ran.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from ffpa_attn.bench import report
from ffpa_attn.bench.environment import describe_environment

WARMUP_BATCHES = 3


@dataclasses.dataclass(frozen=True)
class HostTime:
    """Microseconds a call: percentiles over batches, each batch's time divided by its calls."""

    p10: float
    median: float
    p90: float


def host_times(
    subjects: Mapping[str, Callable[[], object]],
    synchronize: Callable[[], object],
    calls: int = 200,
    batches: int = 400,
) -> dict[str, HostTime]:
    """Host time of each subject; at least two batches.

    The subjects take turns, batch by batch, so that a change of the host's clock reaches all of them. Garbage
    collection is off while the clock runs.
    """
    times: dict[str, list[float]] = {name: [] for name in subjects}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(WARMUP_BATCHES + batches):
            for name, call in subjects.items():
                us = _batch_us(call, calls)
                synchronize()
                if index >= WARMUP_BATCHES:
                    times[name].append(us)
    finally:
        if collecting:
            gc.enable()
    return {name: _host_time(values) for name, values in times.items()}


def _host_time(times: Sequence[float]) -> HostTime:
    deciles = statistics.quantiles(times, n=10)
    return HostTime(p10=deciles[0], median=statistics.median(times), p90=deciles[-1])


def _batch_us(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / 1e3 / calls


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``overhead``."""
    parser = argparse.ArgumentParser(prog="python -m ffpa_attn.bench overhead", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--N", type=int, default=512, help="sequence length (default: 512, the smallest that takes a kernel)")
    add("--H", type=int, default=1, help="heads (default: 1)")
    add("--D", type=int, default=64, help="head dim (default: 64)")
    add("--calls", type=int, default=200, help="calls a batch (default: 200)")
    add("--batches", type=int, default=400, help="batches (default: 400)")
    add("--json", type=pathlib.Path, metavar="FILE", help="write the result as JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure ffpa without and with a backend named, and SDPA, side by side. Returns 1 without a CUDA device."""
    parser = make_parser()
    args = parser.parse_args(argv)
    for name, least in {"N": 1, "H": 1, "D": 8, "calls": 1, "batches": 2}.items():
        if getattr(args, name) < least:
            parser.error(f"--{name} {getattr(args, name)}: must be at least {least}")
    if not torch.cuda.is_available():
        print("error: overhead measures the launch of GPU kernels and needs a CUDA device", file=sys.stderr)
        return 1
    environment = describe_environment(["overhead", *argv])
    q, k, v = (torch.randn(1, args.H, args.N, args.D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    subjects = _subjects(q, k, v)
    with torch.no_grad():
        measured = host_times(subjects, torch.cuda.synchronize, args.calls, args.batches)
    route = importlib.import_module("ffpa_attn").explain(q, k, v)
    print("\n".join(f"- {key}: `{value}`" for key, value in environment.items()))
    print(f"- problem: B1 H{args.H} N{args.N} D{args.D} bf16, route {route.kernel or route.reason}\n")
    rows = [[name, *(f"{t:.2f}" for t in dataclasses.astuple(host))] for name, host in measured.items()]
    print(report.table(["call", "p10 us", "median us", "p90 us"], rows))
    if args.json is not None:
        document = {"schema": report.SCHEMA, "environment": environment, "kernel": route.kernel}
        document["host_us"] = {name: dataclasses.asdict(host) for name, host in measured.items()}
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _subjects(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], object]]:
    ffpa = importlib.import_module("ffpa_attn")
    backend = ffpa.CUDABackend()
    return {
        "ffpa_attn_func": lambda: ffpa.ffpa_attn_func(q, k, v),
        "ffpa_attn_func(backend=CUDABackend())": lambda: ffpa.ffpa_attn_func(q, k, v, backend=backend),
        "F.scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(q, k, v),
        "an empty function": lambda: None,
    }
