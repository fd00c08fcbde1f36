"""The public functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .backends import Backend, resolve_backend
from .explanation import Explanation
from .op import traced_attention
from .options import Options
from .packs import PackSet
from .runners import Result
from .runtime import default_runtime

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_attention = default_runtime().attention


def ffpa_attn_func(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    backend: Backend | str | None = None,
    forward_backend: Backend | str | None = None,
    return_lse: bool = False,
    strict: bool | None = None,
) -> Result:
    """softmax(scale * Q K^T + mask) V, with the signature of `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query: [B, Hq, Nq, D]; float16 or bfloat16 on a CUDA device for a kernel, any floating dtype and device for the
            other routes. Any batch, head and row strides. [H, N, D] and [N, D] count as one batch. With a
            `CUDABackend(tensor_layout="NHD")` all three inputs, and the output, are [B, N, H, D].
        key, value: [B, Hkv, Nkv, D]; Hq is a multiple of Hkv.
        attn_mask: broadcastable to [B, Hq, Nq, Nkv]; bool (True takes part), the query's dtype or float32 (added).
        dropout_p: probability in [0, 1) with which weights are dropped.
        is_causal: row r attends to columns k <= r + Nkv - Nq, so the last query sees every key (SDPA aligns to the
            first one). Needs Nq <= Nkv; excludes attn_mask.
        scale: softmax scale; 1/sqrt(D) when None.
        enable_gqa: taken for compatibility and without effect: head counts that differ are always grouped.
        backend, forward_backend: two names for one choice: "cuda", "sdpa", "reference" or a backend object. None runs
            a kernel where one applies and no gradient is needed, else SDPA.
        return_lse: return also the log-sum-exp of the scaled and masked scores, natural logarithm, without gradient.
        strict: raise instead of falling back to SDPA; None takes the setting of the environment (FFPA_STRICT).

    Returns:
        The output, [B, Hq, Nq, D], dtype of the query, stored in the query's memory order; with return_lse a pair
        with the LSE, float32 [B, Hq, Nq]. A fully masked row gives 0 and -inf.

    Raises:
        TypeError, ValueError: an argument is not allowed; the text names it, its value and what is allowed.
        KernelNotFoundError: a `CUDABackend` was asked for and no installed pack has the kernel.
        FallbackError: strict, and no kernel runs the call.

    A fallback gives `FFPAFallbackWarning`, once for each reason. `explain` shows the route of a call.
    """
    if forward_backend is not None:
        backend = resolve_backend(backend, forward_backend)
    options = (dropout_p, is_causal, scale, backend, return_lse, strict)
    # Under a dispatch mode (export, make_fx, fake tensors) tensors may have no storage that a kernel could read.
    if _is_dynamo_compiling() or _dispatch_modes():
        return traced_attention(query, key, value, attn_mask, Options(*options))
    return _attention(query, key, value, attn_mask, options)


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    backend: Backend | str | None = None,
    forward_backend: Backend | str | None = None,
    return_lse: bool = False,
    strict: bool | None = None,
) -> Explanation:
    """The route that `ffpa_attn_func` takes for these arguments: every candidate, why it lost, copies, packs.

    Takes and checks the same arguments and runs nothing.
    """
    backend = resolve_backend(backend, forward_backend)
    options = Options(dropout_p, is_causal, scale, backend, return_lse, strict)
    return default_runtime().explain(query, key, value, attn_mask, options)


def installed_packs() -> PackSet:
    """The kernel packs that calls use, and those turned away with the reason."""
    return default_runtime().packs
