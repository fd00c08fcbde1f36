"""A progress bar over cases: tqdm where it is installed, otherwise one line a case on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from ffpa_attn.bench.cases import Case


def progress(cases: Sequence[Case]) -> Iterator[Case]:
    """Yield the cases while showing which one runs."""
    try:
        from tqdm import tqdm
    except ImportError:
        for index, case in enumerate(cases, start=1):
            print(f"[{index}/{len(cases)}] {_name(case)}", file=sys.stderr)
            yield case
        return
    with tqdm(cases, unit="case", file=sys.stderr, dynamic_ncols=True) as bar:
        for case in bar:
            bar.set_postfix_str(_name(case))
            yield case


def _name(case: Case) -> str:
    return f"{case.label} {case.shape} D{case.head_dim} {case.dtype}"
