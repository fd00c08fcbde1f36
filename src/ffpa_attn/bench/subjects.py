"""What is measured: ffpa with the backend asked for, PyTorch's SDPA, and the peers installed beside."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from ffpa_attn.bench.cases import Case
from ffpa_attn.bench.tensors import Inputs

FWD_BACKENDS = ("cuda", "sdpa", "reference")
CUDA_IMPLS = ("auto", "native", "tma", "cute", "hopper", "fp8", "fp4")

# CUDABackend fields that select each implementation.
IMPL_FIELDS: dict[str, dict[str, Any]] = {
    "auto": {},
    "native": {"enable_tma": False, "enable_cute": False},
    "tma": {"enable_tma": True, "enable_cute": False},
    "cute": {"enable_tma": False, "enable_cute": True},
    "hopper": {},
    "fp8": {"enable_fp8": True},
    "fp4": {"enable_fp4": True},
}
# The hopper family has no field of its own: it is what the automatic choice prefers on its cards. So it is asked for by
# leaving the choice open, and a case that got another family is an error.
REQUIRED_FAMILY = {"hopper": "hopper"}


class UnavailableError(Exception):
    """A backend or a peer cannot be used here; the text says why."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """Something that computes attention of a case: ``run(inputs, case)`` returns O [B, H, Nq, D]."""

    name: str
    run: Callable[[Inputs, Case], torch.Tensor]


def make_backend(fwd_backend: str, cuda_impl: str) -> Any:
    """The ffpa backend object that the command line names."""
    ffpa = importlib.import_module("ffpa_attn")
    if fwd_backend == "sdpa":
        return ffpa.SDPABackend()
    if fwd_backend == "reference":
        return ffpa.ReferenceBackend()
    return ffpa.CUDABackend(**IMPL_FIELDS[cuda_impl])


def ffpa_subject(backend: Any) -> Subject:
    """ffpa with ``backend``. A fallback is allowed here, because the row says which route ran."""
    ffpa = importlib.import_module("ffpa_attn")

    def run(inputs: Inputs, case: Case) -> torch.Tensor:
        return ffpa.ffpa_attn_func(inputs.q, inputs.k, inputs.v, backend=backend, **call_options(inputs, case))

    return Subject("ffpa", run)


def call_options(inputs: Inputs, case: Case) -> dict[str, Any]:
    """Keywords of ``ffpa_attn_func`` and ``explain`` for a case."""
    return {
        "attn_mask": inputs.mask,
        "dropout_p": case.dropout_p,
        "is_causal": case.causal,
        "enable_gqa": case.kv_heads != case.heads,
    }


def sdpa_subject(name: str = "sdpa", only: SDPBackend | None = None) -> Subject:
    """``F.scaled_dot_product_attention``, tail-aligned where causal; ``only`` pins one of its kernels."""

    def run(inputs: Inputs, case: Case) -> torch.Tensor:
        square = case.q_len == case.kv_len
        mask = inputs.mask
        if case.causal and not square and case.q_len > 1:
            mask = causal_lower_right(case.q_len, case.kv_len)
        with sdpa_kernel([only]) if only is not None else contextlib.nullcontext():
            return F.scaled_dot_product_attention(
                inputs.q,
                inputs.k,
                inputs.v,
                attn_mask=mask,
                dropout_p=case.dropout_p,
                is_causal=case.causal and square and case.q_len > 1,
                enable_gqa=case.kv_heads != case.heads,
            )

    return Subject(name, run)


def find_peers() -> tuple[list[Subject], dict[str, str]]:
    """The peers that can be tried here, and for each one that cannot, the reason."""
    peers = [
        sdpa_subject("sdpa-flash", SDPBackend.FLASH_ATTENTION),
        sdpa_subject("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION),
        sdpa_subject("sdpa-efficient", SDPBackend.EFFICIENT_ATTENTION),
        sdpa_subject("sdpa-math", SDPBackend.MATH),
    ]
    missing: dict[str, str] = {}
    try:
        peers.append(_flash_attn_cute())
    except UnavailableError as error:
        missing["flash-attn-cute"] = str(error)
    return peers, missing


def _flash_attn_cute() -> Subject:
    # A peer is foreign code: whatever its import raises is its reason to be absent, not ours to fail.
    try:
        flash_attn_func = importlib.import_module("flash_attn.cute").flash_attn_func
    except Exception as error:
        raise UnavailableError(f"flash_attn.cute does not import ({type(error).__name__}: {error})") from error

    def run(inputs: Inputs, case: Case) -> torch.Tensor:
        if inputs.mask is not None or case.dropout_p:
            raise UnavailableError("flash_attn.cute takes neither attn_mask nor dropout")
        q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
        out = flash_attn_func(q, k, v, causal=case.causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return Subject("flash-attn-cute", run)
