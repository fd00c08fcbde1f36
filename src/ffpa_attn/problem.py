"""One attention call, validated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .recipes import MAX_MASK_ALIGNMENT

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


@dataclass(frozen=True)
class Problem:
    """The facts of a call that decide its route and its launch.

    Attributes:
        batch, heads, kv_heads, q_len, kv_len, head_dim: query [B, Hq, Nq, D], key [B, Hkv, Nkv, D].
        value_dim: the last dimension of value and of the result; kernels need it equal to head_dim.
        dtype: "bf16", "fp16", "fp32" or "fp64".
        is_causal: row r attends to columns k <= r + kv_len - q_len.
        scale: the softmax scale; 1/sqrt(D) of the true D unless the caller gave one.
        dropout_p: in [0, 1).
        mask_kind: "none", "boolean", "additive" (dtype of the query) or "additive_f32".
        mask_alignment: the power of two, up to 16, of bytes on which every row of the mask starts; 0 without a mask and
            where columns are not dense.
        device_type, device_index: the device of every tensor; index 0 where torch has none.
        needs_grad: gradients are recorded for an input.
        want_lse: the log-sum-exp is returned too.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    dtype: str
    is_causal: bool
    scale: float
    dropout_p: float
    mask_kind: str
    mask_alignment: int
    device_type: str
    device_index: int
    needs_grad: bool
    want_lse: bool

    @property
    def is_empty(self) -> bool:
        """There is no row to compute, or no key to attend to."""
        return 0 in (self.batch, self.heads, self.q_len, self.kv_len, self.value_dim)

    @classmethod
    def from_call(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        want_lse: bool = False,
    ) -> Problem:
        """Check the arguments of a call and describe it.

        Args:
            query: [B, Hq, Nq, D] floating.
            key, value: [B, Hkv, Nkv, D] and [B, Hkv, Nkv, Dv], Hq a multiple of Hkv; dtype and device of the query.
            attn_mask: broadcastable to [B, Hq, Nq, Nkv]; bool, the query's dtype or float32.

        Raises:
            TypeError: an argument is of a wrong type or dtype.
            ValueError: shapes, devices or values do not fit. The texts name argument, value and what is allowed.
        """
        _check_tensors(query, key, value)
        b, h, nq, d = query.shape
        kv_heads, nkv = key.shape[1], key.shape[2]
        mask_kind = _mask_kind(attn_mask, query, (b, h, nq, nkv))
        causal = _flag("is_causal", is_causal)
        if causal and attn_mask is not None:
            raise ValueError("attn_mask and is_causal=True exclude each other; put the causal part into attn_mask")
        if causal and nq > nkv > 0:
            raise ValueError(
                f"is_causal=True with {nq} queries and {nkv} keys: causal is aligned to the last key, so the first "
                f"{nq - nkv} rows would attend to nothing; allowed is query.shape[-2] <= key.shape[-2]"
            )
        tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        return cls(
            batch=b,
            heads=h,
            kv_heads=kv_heads,
            q_len=nq,
            kv_len=nkv,
            head_dim=d,
            value_dim=value.shape[3],
            dtype=DTYPE_NAMES[query.dtype],
            is_causal=causal,
            scale=_scale(scale, d),
            dropout_p=_probability(dropout_p),
            mask_kind=mask_kind,
            mask_alignment=_mask_alignment(attn_mask),
            device_type=query.device.type,
            device_index=query.device.index or 0,
            needs_grad=needs_grad(tensors),
            want_lse=_flag("return_lse", want_lse),
        )


def needs_grad(tensors: tuple[Tensor, ...]) -> bool:
    """Whether autograd, reverse or forward, would have to see the call."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    forward_ad = torch.autograd.forward_ad
    if forward_ad._current_level < 0:
        return False
    return any(t.is_floating_point() and forward_ad.unpack_dual(t).tangent is not None for t in tensors)  # type: ignore[no-untyped-call]


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise TypeError(f"{name} is a {kind} tensor; allowed are dense (strided) tensors")
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; allowed are 4 dimensions, [batch, heads, length, head_dim]"
            )
    dtypes = [t.dtype for t in named.values()]
    if query.dtype not in DTYPE_NAMES:
        allowed = ", ".join(str(t) for t in DTYPE_NAMES)
        raise TypeError(f"query has dtype {query.dtype}; allowed are {allowed}")
    if len(set(dtypes)) != 1:
        got = ", ".join(f"{n}={t.dtype}" for n, t in named.items())
        raise TypeError(f"dtypes differ: {got}; cast them to one dtype or call under torch.autocast")
    if len({t.device for t in named.values()}) != 1:
        got = ", ".join(f"{n}={t.device}" for n, t in named.items())
        raise ValueError(f"devices differ: {got}; all inputs must be on one device")
    shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in named.items())
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"batch sizes differ: {shapes}; dimension 0 must be equal")
    if key.shape[1] != value.shape[1] or key.shape[2] != value.shape[2]:
        raise ValueError(f"key and value differ: {shapes}; their heads (1) and lengths (2) must be equal")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"head dims differ: {shapes}; query and key must have the same last dimension")
    if query.shape[3] == 0:
        raise ValueError(f"head dim is 0: {shapes}; allowed is 1 and more")
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(
            f"query has {heads} heads and key has {kv_heads}; the heads of query must be a multiple of those of key"
        )


def _mask_kind(attn_mask: Tensor | None, query: Tensor, shape: tuple[int, int, int, int]) -> str:
    if attn_mask is None:
        return "none"
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a torch.Tensor or None, got {type(attn_mask).__name__}")
    if attn_mask.dtype == torch.bool:
        kind = "boolean"
    elif attn_mask.dtype == query.dtype:
        kind = "additive"
    elif attn_mask.dtype == torch.float32:
        kind = "additive_f32"
    else:
        raise TypeError(
            f"attn_mask has dtype {attn_mask.dtype}; allowed are torch.bool, {query.dtype} (the query's) "
            "and torch.float32"
        )
    if attn_mask.device != query.device:
        raise ValueError(f"devices differ: query={query.device}, attn_mask={attn_mask.device}; all must be equal")
    sizes = tuple(attn_mask.shape)
    fits = 2 <= len(sizes) <= 4 and all(
        size in (1, want) for size, want in zip(reversed(sizes), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"attn_mask has shape {sizes}; allowed are 2 to 4 dimensions that broadcast to "
            f"[batch, heads, queries, keys] = {shape}"
        )
    return kind


def _mask_alignment(attn_mask: Tensor | None) -> int:
    if attn_mask is None or attn_mask.shape[-1] == 1 or attn_mask.stride(-1) != 1:
        return 0
    try:
        bits = attn_mask.data_ptr()
    except RuntimeError:  # inside of torch.func transforms, where no kernel runs
        return 0
    for size, stride in zip(attn_mask.shape[:-1], attn_mask.stride()[:-1], strict=True):
        if size > 1:
            bits |= stride * attn_mask.element_size()
    return min(MAX_MASK_ALIGNMENT, bits & -bits)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}; allowed are True and False")
    return value


def _probability(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"dropout_p={value!r}; a float in [0, 1) is needed")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"dropout_p={value}; allowed is 0 <= dropout_p < 1")
    return float(value)


def _scale(value: object, head_dim: int) -> float:
    if value is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"scale={value!r}; a finite float or None (1/sqrt(head_dim)) is needed")
    if not math.isfinite(value):
        raise ValueError(f"scale={value}; allowed are finite values")
    return float(value)
