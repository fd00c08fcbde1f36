"""The commands: the sweep, ``overhead`` and ``gates``."""

from __future__ import annotations

import json
import pathlib
import sys
import warnings
from collections.abc import Sequence

import torch

from ffpa_attn.bench import gates, overhead, plot, report, timing
from ffpa_attn.bench.cases import build_cases
from ffpa_attn.bench.environment import describe_environment
from ffpa_attn.bench.options import Options, parse_options
from ffpa_attn.bench.progress import progress
from ffpa_attn.bench.runner import Row, run_case
from ffpa_attn.bench.subjects import REQUIRED_FAMILY, find_peers, make_backend
from ffpa_attn.errors import FFPAFallbackWarning


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns 0, or 1 when nothing could be measured (argparse exits with 2 on wrong use)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["overhead"]:
        return overhead.main(arguments[1:])
    if arguments[:1] == ["gates"]:
        return gates.main(arguments[1:])
    cuda = torch.cuda.is_available()
    options = parse_options(arguments, cuda)
    try:
        if options.plot is not None:
            plot.require_matplotlib()
        backend = make_backend(options.fwd_backend, options.cuda_impl)
    except plot.PlotUnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    environment = describe_environment(arguments)
    peers, missing = find_peers() if options.peers else ([], {})
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    for note in options.notes:
        print(f"note: {note}", file=sys.stderr)
    rows = []
    budget = timing.QUICK if options.quick or not cuda else timing.FULL
    if options.rest is not None and cuda:
        budget = timing.rested(options.rest)
    family = REQUIRED_FAMILY.get(options.cuda_impl)
    cases = list(build_cases(options.tasks, options.head_dims, options.dtypes, options.sizes, options.causal))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FFPAFallbackWarning)  # each row names its route and the reason
        for case in progress(cases):
            row = run_case(case, backend, peers, device, budget, family)
            rows.append(row)
            if options.verbose:
                _print_row(row)
    _publish(rows, options, environment, missing)
    return 0 if any(row.ffpa.error is None for row in rows) else 1


def _publish(rows: list[Row], options: Options, environment: dict[str, str], missing: dict[str, str]) -> None:
    markdown = report.to_markdown(rows, environment, options.notes, missing)
    print(markdown, end="")
    if options.json is not None:
        document = report.to_json(rows, environment, options.notes, missing)
        _write(options.json, json.dumps(document, indent=1, allow_nan=False) + "\n")
    if options.markdown is not None:
        _write(options.markdown, markdown)
    if options.plot is not None:
        plot.save_plot(rows, environment, options.plot)


def _write(path: pathlib.Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _print_row(row: Row) -> None:
    case = row.case
    print(f"{case.label} {case.shape} D{case.head_dim} {case.dtype}: {row.route.text if row.route else 'no route'}")
    for name, result in [("ffpa", row.ffpa), ("sdpa", row.sdpa), *row.peers.items()]:
        rate = f"{report.number(result.gbps)} GB/s" if result.gbps else f"{report.number(result.tflops)} TFLOP/s"
        error = report.scientific(result.error_vs_float32)
        print(f"  {name:16} {result.error or f'{report.number(result.ms)} ms, {rate}, error {error}'}", flush=True)
