"""PyTorch's SDPA with the meaning that every route has: tail-aligned causal, zeros for fully masked rows, LSE."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .layout import result_strides
from .reference import logsumexp


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    *,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    want_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention by `scaled_dot_product_attention`; differentiable in the output, not in the LSE.

    Args:
        query: [B, Hq, Nq, D]; key [B, Hkv, Nkv, D]; value [B, Hkv, Nkv, Dv]; Hq a multiple of Hkv.
        attn_mask: broadcastable to [B, Hq, Nq, Nkv], bool or floating.

    Returns:
        Output [B, Hq, Nq, Dv] in the memory order of the query; LSE [B, Hq, Nq] float32 or None.
    """
    lse = None
    if want_lse:
        with torch.no_grad():
            lse = logsumexp(query, key, attn_mask, is_causal=is_causal, scale=scale, dtype=torch.float32)
    out = _attend(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return in_order_of(query, out), lse


def in_order_of(query: Tensor, out: Tensor) -> Tensor:
    """`out` with the packed strides of `result_strides`, copied only when it has others."""
    strides = result_strides(out.shape, query.stride())
    # strides of dimensions of size 1 carry no meaning
    if all(a == b for a, b, n in zip(out.stride(), strides, out.shape, strict=True) if n > 1):
        return out
    return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device).copy_(out)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    nq, nkv = query.shape[2], key.shape[2]
    if nkv == 0:
        # zeros that autograd still connects with the query
        return value.new_zeros(*query.shape[:3], value.shape[3]) + query[..., :0].sum(-1, keepdim=True)
    gqa = query.shape[1] != key.shape[1]
    top_left = is_causal and nq == nkv
    dead = None
    if is_causal and not top_left and nq > 1:  # one query attends to every key
        attn_mask = torch.ones(nq, nkv, dtype=torch.bool, device=query.device).tril(nkv - nq)
    elif attn_mask is not None:
        attn_mask, dead = _safe_mask(attn_mask, query.dtype)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p=dropout_p, is_causal=top_left, scale=scale, enable_gqa=gqa
    )
    return out if dead is None else out.masked_fill(dead, 0.0)


def _safe_mask(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A mask without fully masked rows, and [..., Nq, 1] bool that tells which rows were.

    SDPA's kernels disagree about such rows (zeros, NaN, the mean of V), in the gradients too. So these rows attend to
    everything and their results are zeroed. Without gradients zeroing is enough, and the mask is not copied.
    """
    boolean = mask.dtype == torch.bool
    if not boolean:
        mask = _within_range(cast_mask(mask, dtype))
    dead = ~mask.any(dim=-1, keepdim=True) if boolean else (mask == -math.inf).all(dim=-1, keepdim=True)
    if torch.is_grad_enabled():
        mask = mask | dead if boolean else mask.masked_fill(dead, 0.0)
    return mask, dead


def _within_range(mask: Tensor) -> Tensor:
    """Finite values not below a quarter of float32's lowest: SDPA's kernels multiply a mask by log2(e), which turns
    the lowest number into -inf. What is left still swallows every score."""
    lowest = torch.finfo(torch.float32).min / 4
    if torch.finfo(mask.dtype).min > lowest:
        return mask
    return mask.masked_fill((mask < lowest) & (mask != -math.inf), lowest)


def cast_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A floating mask in `dtype`; finite values stay finite, so that a large negative number does not become -inf."""
    if mask.dtype == dtype:
        return mask
    cast = mask.to(dtype)
    return torch.where(torch.isfinite(mask), cast.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max), cast)
