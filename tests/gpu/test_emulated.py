"""Kernels of architectures that are not at hand, compiled for this one within their own shared memory."""

import pytest
import torch

from ffpa_attn import CUDABackend, installed_packs

from .support import check, normal, qkv

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
EMULATED = [
    kernel
    for pack in installed_packs().packs
    for kernel in pack.kernels
    if "-for_" in kernel.id and "prefill" in kernel.problems
]
PLAIN = [kernel for kernel in EMULATED if not kernel.features]
MASKED = [kernel for kernel in EMULATED if set(kernel.features) == {"bias"}]

CALLS = {
    "self": {"batch": 2, "heads": 2, "q_len": 640, "kv_len": 640},
    "causal-tail": {"batch": 1, "heads": 2, "q_len": 520, "kv_len": 1101, "is_causal": True},
    "gqa": {"batch": 2, "heads": 6, "q_len": 515, "kv_len": 601, "kv_heads": 2},
}


def call_of(kernel, call, head_dim=None):
    options = dict(CALLS[call])
    shape = {name: options.pop(name) for name in ("batch", "heads", "q_len", "kv_len")}
    inputs = qkv(
        **shape,
        head_dim=head_dim or kernel.head_dim,
        dtype=DTYPES[kernel.dtype],
        kv_heads=options.pop("kv_heads", None),
    )
    return inputs, {**options, "backend": CUDABackend(kernel=kernel.id, acc=kernel.acc)}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kernel", PLAIN, ids=lambda kernel: kernel.id)
def test_an_emulated_kernel_is_as_exact_as_sdpa(kernel, call):
    inputs, options = call_of(kernel, call)
    assert check(*inputs, **options)[0] == kernel.id


@pytest.mark.parametrize("kernel", PLAIN, ids=lambda kernel: kernel.id)
def test_an_emulated_kernel_serves_smaller_head_dims(kernel):
    inputs, options = call_of(kernel, "causal-tail", head_dim=kernel.head_dim - 24)
    check(*inputs, **options)


@pytest.mark.parametrize("kernel", MASKED, ids=lambda kernel: kernel.id)
def test_an_emulated_kernel_takes_masks(kernel):
    (q, k, v), options = call_of(kernel, "gqa")
    for mask in (normal(1, 1, 515, 601, dtype=q.dtype, seed=7), normal(2, 1, 1, 601, dtype=q.dtype, seed=8) > -0.67):
        check(q, k, v, attn_mask=mask, **options)


@pytest.mark.parametrize("kernel", PLAIN, ids=lambda kernel: kernel.id)
def test_an_emulated_kernel_reads_expanded_and_transposed_inputs(kernel):
    (q, k, v), options = call_of(kernel, "self")
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    check(q, k[:1, :1].expand(2, 2, -1, -1), v[:1].expand(2, -1, -1, -1), **options)
