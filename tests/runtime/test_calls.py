"""Calls on the CPU: SDPA and the reference give one result, with the meaning that every route has."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_fakes import attend, explain

import ffpa_attn
from ffpa_attn import CUDABackend, FallbackError, FFPAFallbackWarning, Runtime, ffpa_attn_func, reference
from ffpa_attn.config import Config
from ffpa_attn.packs import PackSet

F64 = torch.float64


@pytest.fixture
def runtime():
    return Runtime(packs=PackSet(), config=Config())


@st.composite
def calls(draw):
    b, groups, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    nq, d = draw(st.integers(1, 20)), draw(st.sampled_from([8, 16, 40]))
    causal = draw(st.booleans())
    nkv = draw(st.integers(nq if causal else 1, 30))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    h, dtype = groups * group, draw(st.sampled_from([torch.float32, torch.bfloat16]))

    def make(heads, n):
        if draw(st.booleans()):  # a chunk of a fused projection
            return torch.randn(b, n, 3, heads, d, generator=gen).to(dtype)[:, :, 1].transpose(1, 2)
        return torch.randn(b, heads, n, d, generator=gen).to(dtype)

    q, k, v = make(h, nq), make(groups, nkv), make(groups, nkv)
    mask = None
    kind = "none" if causal else draw(st.sampled_from(["none", "bool", "own", "f32"]))
    if kind != "none":
        shape = draw(st.sampled_from([(nq, nkv), (1, nkv), (h, nq, nkv), (b, 1, nq, nkv), (b, h, nq, 1)]))
        allowed = torch.rand(shape, generator=gen) > 0.4
        mask = allowed
        if kind != "bool":
            mask = torch.randn(shape, generator=gen).masked_fill(~allowed, -math.inf)
            mask = mask.to(dtype if kind == "own" else torch.float32)
    return q, k, v, mask, causal, draw(st.sampled_from([None, 0.4]))


@settings(max_examples=80, deadline=None)
@given(calls(), st.sampled_from(["sdpa", "reference", None]))
def test_every_route_agrees_with_the_reference_in_float64(case, backend):
    q, k, v, mask, causal, scale = case
    out, lse = ffpa_attn_func(q, k, v, mask, 0.0, causal, scale, backend=backend, return_lse=True)
    want, want_lse = reference.attention(q, k, v, mask, is_causal=causal, scale=scale, dtype=F64)
    tolerance = 2e-2 if q.dtype == torch.bfloat16 else 1e-5
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-4, atol=1e-4)
    if q.shape[1] > 1 and q.shape[2] > 1:
        stored = out.transpose(1, 2) if q.stride(1) < q.stride(2) else out
        assert stored.is_contiguous()


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize(("nq", "nkv"), [(2, 5), (600, 1000), (1, 7)])
def test_causal_is_aligned_to_the_tail(backend, nq, nkv):
    q, k, v = torch.randn(1, 2, nq, 8), torch.randn(1, 2, nkv, 8), torch.randn(1, 2, nkv, 8)
    mask = torch.ones(nq, nkv, dtype=torch.bool).tril(nkv - nq)
    want = reference.attention(q, k, v, mask)[0]
    torch.testing.assert_close(ffpa_attn_func(q, k, v, is_causal=True, backend=backend), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="aligned to the last key"):
        ffpa_attn_func(torch.randn(1, 2, nkv + 1, 8), k, v, is_causal=True, backend=backend)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["bool", "inf", "lowest"])
def test_rows_without_keys(backend, dtype, kind):
    q, k, v = (torch.randn(1, 2, 4, 16).to(dtype).requires_grad_() for _ in range(3))
    dead = torch.zeros(4, 4, dtype=torch.bool)
    dead[1] = True
    mask = ~dead
    if kind != "bool":
        mask = torch.zeros(4, 4).masked_fill(dead, -math.inf if kind == "inf" else torch.finfo(torch.float32).min)
    out, lse = ffpa_attn_func(q, k, v, mask, backend=backend, return_lse=True)
    if kind == "lowest":
        # in float16 the mask is cast and its lowest number does not swallow the scores
        lowest = mask if backend == "reference" else mask.clamp(min=torch.finfo(dtype).min).to(dtype)
        torch.testing.assert_close(out, reference.attention(q, k, v, lowest)[0], rtol=2e-2, atol=2e-2)
    else:
        assert (out[:, :, 1] == 0).all() and (lse[:, :, 1] == -math.inf).all()
    out.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v)) and torch.isfinite(out).all()
    with torch.no_grad():
        torch.testing.assert_close(ffpa_attn_func(q, k, v, mask, backend=backend), out.detach())


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("b", "nq", "nkv"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 0, 0)])
def test_empty_inputs(backend, causal, b, nq, nkv):
    q, k = torch.randn(b, 2, nq, 8, requires_grad=True), torch.randn(b, 2, nkv, 8)
    out, lse = ffpa_attn_func(q, k, k, is_causal=causal, backend=backend, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    assert (out == 0).all() and (lse == -math.inf).all()
    out.sum().backward()


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_dropout_repeats_under_a_seed_and_keeps_the_lse(backend):
    q = torch.randn(2, 2, 64, 16)

    def call(p):
        torch.manual_seed(5)
        return ffpa_attn_func(q, q, q, dropout_p=p, backend=backend, return_lse=True)

    first, again, plain = call(0.3), call(0.3), call(0.0)
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], plain[0])
    assert torch.equal(first[1], plain[1])
    assert abs(float((first[0] - plain[0]).mean())) < 0.02


@pytest.mark.parametrize("ndim", [2, 3])
def test_inputs_without_batch_are_one_batch(ndim):
    q, k = torch.randn(3, 5, 16), torch.randn(3, 9, 16)
    q, k = (q, k) if ndim == 3 else (q[0], k[0])
    mask = torch.rand(5, 9) > 0.3
    for backend in ("sdpa", "reference"):
        out, lse = ffpa_attn_func(q, k, k, mask, backend=backend, return_lse=True)
        assert out.shape == q.shape and lse.shape == q.shape[:-1]
        want = torch.nn.functional.scaled_dot_product_attention(q, k, k, mask)
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_autocast_casts_as_sdpa_does():
    q, v = torch.randn(1, 2, 4, 16), torch.randn(1, 2, 4, 16, dtype=torch.bfloat16)
    for backend in ("sdpa", "reference"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert ffpa_attn_func(q, q, v, backend=backend).dtype == torch.bfloat16
        with pytest.raises(TypeError, match=r"query=torch.float32.*value=torch.bfloat16"):
            ffpa_attn_func(q, q, v, backend=backend)


def test_autocast_casts_a_half_precision_mask_too():
    q, mask = torch.randn(1, 2, 4, 16), torch.randn(4, 4, dtype=torch.float16)
    for backend in ("sdpa", "reference"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = ffpa_attn_func(q, q, q, mask, backend=backend)
        h = q.bfloat16()
        torch.testing.assert_close(got, ffpa_attn_func(h, h, h, mask.bfloat16(), backend=backend))


@pytest.mark.parametrize("mask", [[[True]], 1.0])
def test_a_mask_that_is_no_tensor_is_named(mask):
    q = torch.randn(1, 2, 4, 16)
    with pytest.raises(TypeError, match="attn_mask must be a torch.Tensor or None, got"):
        ffpa_attn_func(q, q, q, mask)
    with torch.no_grad(), pytest.raises(TypeError, match="attn_mask must be a torch.Tensor or None, got"):
        ffpa_attn_func(q, q, q, mask)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_of_the_keys_merge_by_lse_to_the_whole(backend, dtype):
    q, k, v = (torch.randn(1, h, n, 16).to(dtype) for h, n in ((4, 6), (2, 11), (2, 11)))
    mask = torch.rand(6, 11) > 0.4
    mask[2, :5] = False  # one half has nothing for this row
    mask[3] = False
    whole, lse = ffpa_attn_func(q, k, v, mask, backend=backend, return_lse=True)
    (a, lse_a), (b, lse_b) = (
        ffpa_attn_func(q, k[:, :, part], v[:, :, part], mask[:, part], backend=backend, return_lse=True)
        for part in (slice(0, 5), slice(5, None))
    )
    merged, merged_lse = reference.merge(a, lse_a, b, lse_b)
    torch.testing.assert_close(merged, whole, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1e-2)
    torch.testing.assert_close(merged_lse, lse)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("d", [8, 40, 60, 88, 1000, 1032])
def test_any_head_dim_and_fused_views_on_routes_without_kernels(backend, d):
    """Multiples of 8 or not, and past what kernels serve."""
    fused = torch.randn(2, 7, 3, 2, d, dtype=torch.float16)
    views = [t.transpose(1, 2) for t in fused.unbind(2)]
    out = ffpa_attn_func(*views, is_causal=True, backend=backend)
    clones = [t.contiguous() for t in views]
    torch.testing.assert_close(out, ffpa_attn_func(*clones, is_causal=True, backend=backend))
    torch.testing.assert_close(
        out.double(), reference.attention(*clones, is_causal=True, dtype=F64)[0], atol=2e-3, rtol=2e-3
    )


def test_gradients_go_through_sdpa():
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=F64, requires_grad=True) for _ in range(3))
    for backend in ("sdpa", "reference"):
        assert torch.autograd.gradcheck(lambda *t, b=backend: ffpa_attn_func(*t, is_causal=True, backend=b), (q, k, v))


def test_vmap_and_fake_tensors_pass_the_plans_by():
    q = torch.randn(3, 1, 2, 4, 8)
    want = torch.stack([ffpa_attn_func(t, t, t) for t in q])
    torch.testing.assert_close(torch.func.vmap(lambda t: ffpa_attn_func(t, t, t))(q), want)


def test_value_may_have_another_head_dim():
    q, v = torch.randn(1, 2, 4, 16), torch.randn(1, 2, 4, 24)
    out = ffpa_attn_func(q, q, v)
    assert out.shape == v.shape
    torch.testing.assert_close(out, reference.attention(q, q, v)[0], rtol=1e-5, atol=1e-5)


Q = torch.randn(1, 2, 8, 16)


def test_one_warning_for_each_reason(runtime):
    with pytest.warns(FFPAFallbackWarning, match="the tensors are on 'cpu'"):
        attend(runtime, Q, Q, Q, backend="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend(runtime, Q, Q, Q, backend="cuda")
        attend(runtime, Q, Q, Q, backend="sdpa")
        attend(runtime, Q, Q, Q, backend="reference")
        attend(runtime, Q, Q, Q)
    runtime.clear()
    with pytest.warns(FFPAFallbackWarning):
        attend(runtime, Q, Q, Q, backend="cuda")


def test_a_warning_names_the_callers_line():
    ffpa_attn.default_runtime().notices.reset()
    with pytest.warns(FFPAFallbackWarning) as caught:
        ffpa_attn_func(Q, Q, Q, backend="cuda")
    assert caught[0].filename == __file__


def test_strict_raises_instead_of_falling_back(runtime):
    for backend in (None, "cuda"):
        with pytest.raises(FallbackError, match="strict mode: .*kernels need a CUDA device") as caught:
            attend(runtime, Q, Q, Q, backend=backend, strict=True)
        assert caught.value.code == "device"
    assert torch.equal(attend(runtime, Q, Q, Q, backend="sdpa", strict=True), attend(runtime, Q, Q, Q, backend="sdpa"))
    strict = Runtime(packs=PackSet(), config=Config(strict=True))
    with pytest.raises(FallbackError):
        attend(strict, Q, Q, Q)
    attend(strict, Q, Q, Q, strict=False)
    with pytest.raises(TypeError, match=r"strict=1; allowed are True, False and None"):
        attend(runtime, Q, Q, Q, strict=1)


def test_nhd_is_refused_where_no_kernel_runs(runtime):
    with pytest.raises(ValueError, match=r"tensor_layout='NHD' is served by kernels only.*CUDA device.*'HND'"):
        attend(runtime, Q, Q, Q, backend=CUDABackend(tensor_layout="NHD"))


def test_explain_names_route_and_reason(runtime):
    explained = explain(runtime, Q, Q, Q, is_causal=True, return_lse=True)
    assert (explained.route, explained.kernel, explained.error) == ("sdpa", None, None)
    assert "kernels need a CUDA device" in explained.reason
    for part in ("problem: fp32 B=1 Hq=2", "causal=True", "route: sdpa (device)", "pack: none is installed"):
        assert part in str(explained)
    assert explain(runtime, Q, Q, Q, backend="reference").route == "reference"
    refused = explain(runtime, Q, Q, Q, strict=True)
    assert refused.route == "error" and refused.error.startswith("FallbackError: strict mode")
    with pytest.raises(ValueError, match="exclude each other"):
        explain(runtime, Q, Q, Q, torch.zeros(8, 8), is_causal=True)
    assert ffpa_attn.explain(Q, Q, Q).route == "sdpa"


def test_arguments_that_cannot_be_hashed_are_named(runtime):
    with pytest.raises(TypeError, match=r"dropout_p=\[0\.1\]"):
        attend(runtime, Q, Q, Q, dropout_p=[0.1])
    with pytest.raises(TypeError, match="key must be a torch.Tensor, got NoneType"):
        attend(runtime, Q, None, Q)


def test_long_inputs_hold_no_score_matrix():
    q, k = torch.randn(1, 1, 3000, 8), torch.randn(1, 1, 3001, 8)
    out, lse = reference.attention(q, k, k, is_causal=True, score_elements=1 << 16)
    torch.testing.assert_close(ffpa_attn_func(q, k, k, is_causal=True), out, rtol=1e-4, atol=1e-5)
    assert torch.isfinite(lse).all()
