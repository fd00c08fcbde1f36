"""From a route to a function that computes it: a kernel, SDPA, the reference, or zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import fallback, philox, reference
from .call import Call
from .layout import result_strides
from .problem import Problem
from .recipes import MAX_MASK_ALIGNMENT
from .routing import KernelRoute, ReferenceRoute, Route

Result = Tensor | tuple[Tensor, Tensor]
# Give None, and do nothing, for tensors that do not fit; a runner's tensors are [B, H, N, D], a plan's the caller's.
Runner = Callable[[Tensor, Tensor, Tensor, "Tensor | None"], "Result | None"]
Plan = Runner


def runner_of(taken: Route, call: Call, launcher: Any) -> Runner:
    """The function for calls like this one; a kernel needs a `launcher` with `prepare`, as `ffpa_attn.launch` has."""
    problem = call.problem
    if isinstance(taken, KernelRoute):
        return _empty_runner(problem) if problem.is_empty else _kernel_runner(taken, call, launcher)
    if isinstance(taken, ReferenceRoute):
        return _reference_runner(problem)
    return _sdpa_runner(problem)


def finished(call: Call, run: Runner) -> Result:
    """The result of `call`, whose runner `run` is, for its caller."""
    result = run(call.query, call.key, call.value, call.attn_mask)
    assert result is not None  # the runner was made for these tensors
    return call.finish(result)


def plan_of(taken: Route, call: Call, run: Runner) -> Plan:
    """`run` with the steps around it for calls of one signature. Plans are kept, so they hold nothing of `call`."""
    nhd = call.nhd
    dtype, device = call.query.dtype, call.query.device
    shapes = [(t.transpose(1, 2) if nhd else t).shape for t in (call.query, call.key, call.value)]

    if isinstance(taken, KernelRoute) and not call.problem.is_empty:
        # the launcher compares every tensor with the plan, so nothing is checked here
        if not nhd:
            return run

        def transposed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> Result | None:
            result = run(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask)
            return None if result is None else _swapped(result)

        return transposed

    def checked(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> Result | None:
        tensors = (query, key, value)
        if any(tensor.dtype != dtype or tensor.device != device for tensor in tensors):
            return None
        if [tensor.shape for tensor in tensors] != shapes or (attn_mask is not None and attn_mask.device != device):
            return None
        if nhd:
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        result = run(query, key, value, attn_mask)
        return _swapped(result) if nhd and result is not None else result

    return checked


def _swapped(result: Result) -> Result:
    """A result in [B, N, H, D]."""
    return (result[0].transpose(1, 2), result[1]) if isinstance(result, tuple) else result.transpose(1, 2)


def _result(out: Tensor, lse: Tensor | None) -> Result:
    return out if lse is None else (out, lse)


def _kernel_runner(taken: KernelRoute, call: Call, launcher: Any) -> Runner:
    p, dtype = call.problem, call.query.dtype  # not `call`: the function is kept, and must not keep the tensors
    if taken.cast_mask:
        p = replace(p, mask_kind="additive")  # what the kernel gets
    scores = (p.batch, p.heads, p.q_len, p.kv_len)

    def prepared_mask(mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        if taken.cast_mask:
            mask = _with_aligned_rows(fallback.cast_mask(mask, dtype))
        return mask.expand(scores)

    # Only what differs from the usual launch is named, so that launchers of tests can leave it out.
    pack, follower = taken.pack, taken.merge
    extra = {} if follower is None else {"merge": (follower, lambda: pack.image(follower))}
    launch = launcher.prepare(
        taken.kernel,
        lambda: taken.pack.image(taken.kernel),
        p,
        call.query,
        call.key,
        call.value,
        prepared_mask(call.attn_mask),
        p.want_lse,
        **extra,
    )
    if p.mask_kind == "none" and p.dropout_p == 0.0:
        return launch  # type: ignore[no-any-return]

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result | None:
        if p.dropout_p == 0.0:
            return launch(query, key, value, prepared_mask(mask))  # type: ignore[no-any-return]
        seed, offset = philox.draw(query.device)
        return launch(query, key, value, prepared_mask(mask), (seed, offset, 0))  # type: ignore[no-any-return]

    return run


def _with_aligned_rows(mask: Tensor) -> Tensor:
    columns = mask.shape[-1]
    padding = -columns % (MAX_MASK_ALIGNMENT // mask.element_size())
    if padding == 0 or columns == 1:
        return mask.contiguous()
    storage = mask.new_empty(*mask.shape[:-1], columns + padding)
    rows = storage[..., :columns]
    rows.copy_(mask)
    return rows


def _sdpa_runner(problem: Problem) -> Runner:
    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result:
        return _result(
            *fallback.sdpa(
                query,
                key,
                value,
                mask,
                dropout_p=problem.dropout_p,
                is_causal=problem.is_causal,
                scale=problem.scale,
                want_lse=problem.want_lse,
            )
        )

    return run


def _reference_runner(problem: Problem) -> Runner:
    p = problem

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result:
        stream = philox.stream_of(philox.draw(query.device)) if p.dropout_p > 0.0 else None
        out, lse = reference.attention(
            query,
            key,
            value,
            mask,
            is_causal=p.is_causal,
            scale=p.scale,
            dropout_p=p.dropout_p,
            philox=stream,
        )
        return _result(fallback.in_order_of(query, out), lse.to(torch.float32) if p.want_lse else None)

    return run


def _empty_runner(problem: Problem) -> Runner:
    """No row or no key: zeros, and an LSE of -inf."""

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result:
        strides = result_strides(query.shape, query.stride())
        out = torch.empty_strided(query.shape, strides, dtype=query.dtype, device=query.device).zero_()
        lse = query.new_full(query.shape[:3], -torch.inf, dtype=torch.float32) if problem.want_lse else None
        return _result(out, lse)

    return run
