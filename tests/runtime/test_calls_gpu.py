"""SDPA's and the reference's routes on a GPU, where SDPA has other kernels than on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

from ffpa_attn import ffpa_attn_func, reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["bool", "inf", "f32", "lowest"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_masks_with_rows_without_keys(dtype, kv_heads, kind, grad):
    q, k, v = inputs(33, 65, kv_heads, dtype, grad)
    allowed = torch.rand(33, 65, device="cuda") > 0.4
    allowed[3] = False
    mask = allowed
    if kind != "bool":
        fill = torch.finfo(dtype).min if kind == "lowest" else -math.inf
        mask = torch.zeros(33, 65, device="cuda", dtype=torch.float32 if kind == "f32" else dtype)
        mask = mask.masked_fill(~allowed, fill)
    check(q, k, v, mask, False)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("nq", "nkv"), [(64, 64), (40, 100), (1, 100)])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_causal(dtype, kv_heads, nq, nkv, grad):
    check(*inputs(nq, nkv, kv_heads, dtype, grad), None, True)


def test_dropout_of_the_reference_repeats_under_a_seed():
    q = torch.randn(1, 2, 33, 80, device="cuda")

    def call():
        torch.manual_seed(1)
        first = ffpa_attn_func(q, q, q, dropout_p=0.3, backend="reference")
        return first, ffpa_attn_func(q, q, q, dropout_p=0.3, backend="reference")

    (a, b), (c, d) = call(), call()
    assert torch.equal(a, c) and torch.equal(b, d) and not torch.equal(a, b)


@pytest.mark.parametrize("backend", ["reference", "sdpa", None])
def test_one_compiled_graph(backend):
    q = torch.randn(1, 2, 33, 80, device="cuda", dtype=torch.bfloat16)

    def call(t):
        return ffpa_attn_func(t, t, t, is_causal=True, backend=backend)

    torch.testing.assert_close(torch.compile(call, fullgraph=True)(q), call(q))


def inputs(nq, nkv, kv_heads, dtype, grad):
    q = torch.randn(2, nq, 4, 64, device="cuda", dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(2, kv_heads, nkv, 64, device="cuda", dtype=dtype) for _ in range(2))
    return tuple(t.requires_grad_(grad) for t in (q, k, v))


def check(q, k, v, mask, causal):
    out, lse = ffpa_attn_func(q, k, v, mask, is_causal=causal, backend="sdpa", return_lse=True)
    want, want_lse = reference.attention(q, k, v, mask, is_causal=causal, dtype=torch.float64)
    torch.testing.assert_close(out.double(), want, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-3, atol=1e-3)
    assert out.transpose(1, 2).is_contiguous()
    if out.requires_grad:
        out.sum().backward()
        assert all(torch.isfinite(t.grad).all() for t in (q, k, v))
