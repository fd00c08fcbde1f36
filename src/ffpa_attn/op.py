"""Attention as a `torch.library` operator, so that `torch.compile` keeps a call in one graph."""

from __future__ import annotations

import torch
from torch import Tensor

from .autocast import autocast
from .backends import decode, resolve_backend
from .call import is_nhd
from .layout import result_strides
from .options import Options
from .runtime import default_runtime


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    backend: str,
    return_lse: bool,
    strict: bool | None,
) -> tuple[Tensor, Tensor]:
    """The forward pass; arguments as `Options`, the backend as its `spec`, "" for None. Without return_lse the second
    result is empty."""
    options = Options(dropout_p, is_causal, scale, decode(backend), return_lse, strict)
    result = default_runtime().attention(query, key, value, attn_mask, options)
    if isinstance(result, tuple):
        return result
    return result, query.new_empty(0, dtype=torch.float32)


def _attention_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    backend: str,
    return_lse: bool,
    strict: bool | None,
) -> tuple[Tensor, Tensor]:
    nhd = is_nhd(decode(backend))
    added = 4 - query.ndim
    q = query[(None,) * added]
    v = value[(None,) * added]
    if nhd:
        q, v = q.transpose(1, 2), v.transpose(1, 2)
    shape = (*q.shape[:3], v.shape[3])
    out = torch.empty_strided(shape, result_strides(shape, q.stride()), dtype=q.dtype, device=q.device)
    if nhd:
        out = out.transpose(1, 2)
    for _ in range(added):
        out = out.squeeze(0)
    lse_shape = q.shape[added:3] if return_lse else (0,)
    return out, query.new_empty(lse_shape, dtype=torch.float32)


# Not `custom_op`: that of torch 2.6 takes no tags. A graph pass must neither merge nor repeat calls that draw dropout.
_LIBRARY = torch.library.Library("ffpa_attn", "FRAGMENT")
_LIBRARY.define(
    "attention" + torch.library.infer_schema(_attention, mutates_args=()),
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)
_LIBRARY.impl("attention", _attention, "CompositeExplicitAutograd")
torch.library.register_fake("ffpa_attn::attention", _attention_fake, lib=_LIBRARY)
attention_op = torch.ops.ffpa_attn.attention.default


def traced_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, options: Options
) -> Tensor | tuple[Tensor, Tensor]:
    """What a compiled graph holds for a call: the operator, or SDPA itself where autograd has to look inside."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        # Kernels are forward-only: the same refusals as in an eager call, else SDPA or the reference, traced.
        return default_runtime().differentiable(query, key, value, attn_mask, options)
    # Here and not in the operator: its fake has no autocast state to look at, and a graph runs without one.
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    chosen = resolve_backend(options.backend, None)
    out, lse = attention_op(
        query,
        key,
        value,
        attn_mask,
        options.dropout_p,
        options.is_causal,
        options.scale,
        "" if chosen is None else chosen.spec,
        options.return_lse,
        options.strict,
    )
    return (out, lse) if options.return_lse else out
