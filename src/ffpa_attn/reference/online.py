"""The two identities that the kernels are built on: the online softmax over blocks of keys, and the merge by LSE."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .attention import _grouped_matmul, _scores


def online_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    block: int = 128,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Attention with one pass over blocks of `block` keys; arguments and results as `reference.attention`.

    A row keeps its maximum m, its sum l and its unnormalised output o. A block with scores s changes them to
    m' = max(m, max s), l' = l * exp(m - m') + sum exp(s - m'), o' = o * exp(m - m') + exp(s - m') V.
    """
    b, h, nq, _ = query.shape
    k, v = key.to(dtype), value.to(dtype)
    maximum = torch.full((b, h, nq), -math.inf, dtype=dtype, device=query.device)
    total = torch.zeros_like(maximum)
    out = torch.zeros(b, h, nq, value.shape[-1], dtype=dtype, device=query.device)
    scores = _scores(query, k, attn_mask, is_causal, scale, 0, nq)
    for first in range(0, key.shape[2], block):
        part = scores[..., first : first + block]
        new_maximum = torch.maximum(maximum, part.amax(dim=-1))
        # a row without any key so far has the maximum -inf, and -inf - (-inf) is NaN: measure it from 0
        origin = torch.where(new_maximum == -math.inf, 0.0, new_maximum)
        weights = torch.exp(part - origin[..., None])
        rescale = torch.exp(maximum - origin)
        total = total * rescale + weights.sum(dim=-1)
        out = out * rescale[..., None] + _grouped_matmul(weights, v[:, :, first : first + block])
        maximum = new_maximum
    out = out / torch.where(total == 0, 1.0, total)[..., None]
    return out, maximum + torch.log(total)


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from the results over each.

    Args:
        out_a, out_b: [B, H, Nq, D].
        lse_a, lse_b: [B, H, Nq]; -inf where a row had no key.

    Returns:
        Output in the dtype of `out_a`, LSE in the dtype of `lse_a`.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    origin = torch.where(lse == -math.inf, 0.0, lse)
    weight_a = torch.exp(lse_a - origin)[..., None]
    weight_b = torch.exp(lse_b - origin)[..., None]
    return (out_a * weight_a + out_b * weight_b).to(out_a.dtype), lse
