"""Runs the cases of a sweep. One case that fails becomes a row with its error; the sweep goes on."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch

from ffpa_attn.bench import tensors, timing
from ffpa_attn.bench.cases import Case
from ffpa_attn.bench.route import RouteTaken, route_of
from ffpa_attn.bench.subjects import Subject, ffpa_subject, sdpa_subject

ERROR_CHARS = 400
DROPOUT_SEED = 1234
# Dropout is checked on a problem of this size with the case's head dim and dtype: the reference holds the whole score
# matrix, and it can only be compared when both draw the same mask, so every row counts and none can be sampled.
DROPOUT_CHECK_LEN = 1024
DROPOUT_CHECK_HEADS = 2


@dataclasses.dataclass
class Result:
    """One subject on one case. ``error`` is set, and the rest None, when it did not run."""

    ms: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    sm_mhz: float | None = None
    error_vs_float32: float | None = None
    error: str | None = None


@dataclasses.dataclass
class Row:
    """One case of the sweep with everything measured on it."""

    case: Case
    route: RouteTaken | None = None
    ffpa: Result = dataclasses.field(default_factory=Result)
    sdpa: Result = dataclasses.field(default_factory=Result)
    parity_vs_sdpa: float | None = None
    peers: dict[str, Result] = dataclasses.field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """Time of SDPA over time of ffpa."""
        if self.ffpa.ms is None or self.sdpa.ms is None:
            return None
        return self.sdpa.ms / self.ffpa.ms


@torch.no_grad()
def run_case(
    case: Case,
    backend: Any,
    peers: list[Subject],
    device: torch.device,
    budget: timing.Budget = timing.FULL,
    family: str | None = None,
) -> Row:
    """Measure one case: never raises for what a subject does. ``family``: the case must run a kernel of it."""
    row = Row(case)
    try:
        inputs = tensors.make_inputs(case, device)
        sample = tensors.sample_of(case, device)
        reference = tensors.reference_rows(inputs, case, sample)
        row.route = route_of(inputs, case, backend)
    except Exception as error:  # out of memory, or arguments that the API rejects: this row's outcome
        row.ffpa.error = describe(error)
        _release(device)
        return row
    ours = None
    if family is not None and not row.route.text.startswith(f"{family}."):
        row.ffpa.error = f"no kernel of the {family} family: the route is {row.route.text}"
    else:
        ours = _measure(row.ffpa, ffpa_subject(backend), inputs, case, sample, reference, device, budget)
    theirs = _measure(row.sdpa, sdpa_subject(), inputs, case, sample, reference, device, budget)
    if ours is not None and theirs is not None and not case.dropout_p:
        row.parity_vs_sdpa = tensors.relative_error(ours, theirs)
    if case.dropout_p and row.ffpa.error is None:
        _attempt(row.ffpa, lambda: dropout_error(case, backend, device))
    for peer in peers:
        row.peers[peer.name] = result = Result()
        _measure(result, peer, inputs, case, sample, reference, device, budget)
    _release(device)
    return row


def _measure(
    result: Result,
    subject: Subject,
    inputs: tensors.Inputs,
    case: Case,
    sample: tensors.Sample,
    reference: torch.Tensor,
    device: torch.device,
    budget: timing.Budget,
) -> torch.Tensor | None:
    """Fill ``result`` and return the sampled output, None when the subject failed."""
    try:
        out = sample.take(subject.run(inputs, case))
        if not case.dropout_p:
            result.error_vs_float32 = tensors.relative_error(out, reference)
        measured = timing.measure(lambda: subject.run(inputs, case), device, budget)
        result.ms, result.sm_mhz = measured.ms, measured.sm_mhz
    except Exception as error:  # a subject's failure is its result
        result.error = describe(error)
        _release(device)
        return None
    result.tflops = case.flops / result.ms / 1e9
    if case.q_len == 1:
        result.gbps = case.kv_bytes / result.ms / 1e6
    return out


def _attempt(result: Result, compute: Callable[[], float]) -> None:
    try:
        result.error_vs_float32 = compute()
    except Exception as error:  # the check's failure belongs to the row
        result.error = describe(error)


def dropout_error(case: Case, backend: Any, device: torch.device) -> float:
    """Relative error against the reference with the same seed, so with the same elements dropped."""
    heads, length = DROPOUT_CHECK_HEADS, DROPOUT_CHECK_LEN
    small = dataclasses.replace(case, batch=1, heads=heads, kv_heads=heads, q_len=length, kv_len=length)
    inputs = tensors.make_inputs(small, device)
    ffpa = importlib.import_module("ffpa_attn")
    torch.manual_seed(DROPOUT_SEED)
    out = ffpa_subject(backend).run(inputs, small)
    torch.manual_seed(DROPOUT_SEED)
    reference = ffpa_subject(ffpa.ReferenceBackend()).run(inputs, small)
    return tensors.relative_error(out, reference)


def describe(error: BaseException) -> str:
    """``TypeName: first line``, short enough for a table."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"[:ERROR_CHARS]


def _release(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
