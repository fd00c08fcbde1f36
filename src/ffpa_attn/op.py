"""Attention as a `torch.library` operator, so that `torch.compile` keeps a call in one graph."""

from __future__ import annotations

import torch
from torch import Tensor

from .autocast import autocast
from .backends import Backend, CUDABackend, decode, resolve_backend
from .layout import result_strides
from .runtime import default_runtime


@torch.library.custom_op("ffpa_attn::attention", mutates_args=())
def attention_op(
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
    """The forward pass; arguments as `ffpa_attn_func`, the backend as its `spec`, "" for None. Without return_lse the
    second result is empty."""
    result = default_runtime().attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        backend=decode(backend),
        return_lse=return_lse,
        strict=strict,
    )
    if isinstance(result, tuple):
        return result
    return result, query.new_empty(0, dtype=torch.float32)


@attention_op.register_fake
def _(
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
    chosen = decode(backend)
    nhd = isinstance(chosen, CUDABackend) and chosen.tensor_layout == "NHD"
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


def traced_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    backend: Backend | str | None,
    forward_backend: Backend | str | None,
    return_lse: bool,
    strict: bool | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """What a compiled graph holds for a call: the operator, or SDPA itself where autograd has to look inside."""
    chosen = resolve_backend(backend, forward_backend)
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _traced_with_gradients(
            query, key, value, attn_mask, dropout_p, is_causal, scale, chosen, return_lse, strict
        )
    # Here and not in the operator: its fake has no autocast state to look at, and a graph runs without one.
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    out, lse = torch.ops.ffpa_attn.attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        "" if chosen is None else chosen.spec,
        return_lse,
        strict,
    )
    return (out, lse) if return_lse else out


def _traced_with_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    backend: Backend | None,
    return_lse: bool,
    strict: bool | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Kernels are forward-only: the same refusals as in an eager call, else SDPA or the reference, traced."""
    return default_runtime().differentiable(
        query, key, value, attn_mask, dropout_p, is_causal, scale, backend, return_lse, strict
    )
