"""Exact attention, one block of query rows at a time, so that no N x N tensor exists for long inputs."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from ..autocast import AUTOCAST_DEVICES
from .dropout import keep_mask

# Scores held at once; 2^22 float64 elements are 32 MiB.
SCORE_ELEMENTS = 1 << 22


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    philox: tuple[int | Tensor, int | Tensor] | None = None,
    dtype: torch.dtype | None = None,
    score_elements: int = SCORE_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """softmax(scale * Q K^T + mask) V and the log-sum-exp of its rows.

    Args:
        query: [B, Hq, Nq, D].
        key, value: [B, Hkv, Nkv, D] and [B, Hkv, Nkv, Dv]; Hq is a multiple of Hkv. Heads are grouped, not expanded.
        attn_mask: broadcastable to [B, Hq, Nq, Nkv]; bool (True takes part) or floating (added to the scores).
        is_causal: row r attends to columns k <= r + Nkv - Nq.
        scale: 1/sqrt(D) when None.
        dropout_p, philox: probability, and (seed, offset) of the random stream. Weights are dropped after the row
            sum is taken and the kept ones scaled by 1 / (1 - p), so the LSE does not depend on dropout.
        dtype: compute and return both results in this dtype. None computes in float32, or in float64 for float64
            inputs, and returns the output in the query's dtype and a float32 LSE.
        score_elements: bound on the scores held at once.

    Returns:
        Output [B, Hq, Nq, Dv] and LSE (natural logarithm) [B, Hq, Nq]. A fully masked row gives 0 and -inf.
    """
    if dropout_p > 0.0 and philox is None:
        raise ValueError(f"dropout_p={dropout_p}: philox=(seed, offset) is needed")
    compute = dtype or (torch.float64 if query.dtype == torch.float64 else torch.float32)
    nq = query.shape[2]
    k, v = key.to(compute), value.to(compute)
    outs, lses = [], []
    for first, end in _row_blocks(query, key, score_elements):
        scores = _scores(query, k, attn_mask, is_causal, scale, first, end)
        weights, total, lse = _row_softmax(scores)
        if dropout_p > 0.0:
            assert philox is not None
            b, h = query.shape[:2]
            shape = (b, h, nq, key.shape[2])
            keep = keep_mask(shape, dropout_p, *philox, rows=(first, end), device=query.device)
            weights = weights * keep / (1.0 - dropout_p)
        outs.append(_grouped_matmul(weights, v) / torch.where(total == 0, 1.0, total))
        lses.append(lse)
    out = torch.cat(outs, dim=2) if len(outs) != 1 else outs[0]
    lse = torch.cat(lses, dim=2) if len(lses) != 1 else lses[0]
    return out.to(dtype or query.dtype), lse.to(dtype or torch.float32)


def logsumexp(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
    score_elements: int = SCORE_ELEMENTS,
) -> Tensor:
    """The LSE alone, [B, Hq, Nq], with the arguments of `attention`; float32 unless `dtype` says otherwise."""
    compute = dtype or (torch.float64 if query.dtype == torch.float64 else torch.float32)
    k = key.to(compute)
    lses = [
        _row_softmax(_scores(query, k, attn_mask, is_causal, scale, first, end))[2]
        for first, end in _row_blocks(query, key, score_elements)
    ]
    return torch.cat(lses, dim=2).to(dtype or torch.float32)


def _row_blocks(query: Tensor, key: Tensor, score_elements: int) -> list[tuple[int, int]]:
    b, h, nq, _ = query.shape
    per_row = max(b * h * key.shape[2], 1)
    rows = max(score_elements // per_row, 1)
    return [(first, min(first + rows, nq)) for first in range(0, nq, rows)] or [(0, 0)]


def _scores(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None, first: int, end: int
) -> Tensor:
    """Scaled and masked scores [B, Hq, end - first, Nkv] of a block of rows, in the dtype of `key`."""
    b, h, nq, d = query.shape
    nkv = key.shape[2]
    scale = d**-0.5 if scale is None else scale
    scores = _grouped_matmul(query[:, :, first:end].to(key.dtype), key.transpose(-1, -2)) * scale
    if attn_mask is not None:
        mask = attn_mask.expand(b, h, nq, nkv)[:, :, first:end]
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
    if is_causal:
        row = torch.arange(first, end, device=query.device)[:, None]
        column = torch.arange(nkv, device=query.device)
        scores = scores.masked_fill(column > row + (nkv - nq), -math.inf)
    return scores


def _row_softmax(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(scores - maximum) [..., n, Nkv], its row sum [..., n, 1] and the LSE [..., n].

    The sum is kept beside the LSE: where all scores are near the lowest finite number, maximum + log(sum) rounds to
    the maximum.
    """
    if scores.shape[-1] == 0:
        origin = scores.new_zeros(*scores.shape[:-1], 1)
    else:
        maximum = scores.detach().amax(dim=-1, keepdim=True)
        # a dead row is measured from 0: exp(-inf - 0) = 0, where -inf - (-inf) would be NaN
        origin = torch.where(maximum == -math.inf, 0.0, maximum)
    weights = torch.exp(scores - origin)
    total = weights.sum(dim=-1, keepdim=True)
    return weights, total, (origin + torch.log(total)).squeeze(-1)


def _grouped_matmul(left: Tensor, right: Tensor) -> Tensor:
    """[B, Hq, n, m] @ [B, Hkv, m, p] -> [B, Hq, n, p]; the query heads of a group are stacked as rows."""
    b, h, n, m = left.shape
    groups = right.shape[1]
    if h == 0:
        return left.new_zeros(b, h, n, right.shape[-1])
    # The caller chose the dtype; autocast would multiply in its own.
    device = left.device.type
    exact = torch.autocast(device, enabled=False) if device in AUTOCAST_DEVICES else nullcontext()
    with exact:
        product = left.reshape(b, groups, h // groups * n, m) @ right
    return product.reshape(b, h, n, right.shape[-1])
