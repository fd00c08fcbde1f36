"""The reference against the definition of attention, computed with one float64 score tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ffpa_attn.reference import attention, keep_mask, logsumexp, merge, online_attention

F64 = torch.float64


def naive(q, k, v, mask=None, causal=False, scale=None):
    """The definition, with K and V repeated for grouped heads."""
    q, k, v = q.double(), k.double(), v.double()
    if k.shape[1] != q.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    if causal:
        nq, nkv = scores.shape[-2:]
        allowed = torch.tensor([[c <= r + nkv - nq for c in range(nkv)] for r in range(nq)], dtype=torch.bool)
        scores = scores.masked_fill(~allowed.reshape(nq, nkv), -math.inf)
    exps = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e300))
    total = exps.sum(-1, keepdim=True)
    weights = torch.where(total > 0, exps / total, 0.0)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v), torch.log(torch.exp(scores).sum(-1))


@st.composite
def cases(draw):
    b, groups, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    nq, d = draw(st.integers(1, 9)), draw(st.sampled_from([1, 3, 8, 16]))
    causal = draw(st.booleans())
    nkv = draw(st.integers(nq if causal else 1, 12))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    h = groups * group
    q = (
        torch.randn(b, nq, h, d, generator=gen).transpose(1, 2)
        if draw(st.booleans())
        else torch.randn(b, h, nq, d, generator=gen)
    )
    k, v = (torch.randn(b, groups, nkv, d, generator=gen) for _ in range(2))
    kind = "none" if causal else draw(st.sampled_from(["none", "bool", "add"]))
    shape = draw(st.sampled_from([(nq, nkv), (1, nkv), (h, nq, nkv), (b, 1, nq, nkv), (b, h, nq, 1)]))
    mask = None
    if kind == "bool":
        mask = torch.rand(shape, generator=gen) > 0.5
    elif kind == "add":
        mask = torch.randn(shape, generator=gen).masked_fill(torch.rand(shape, generator=gen) > 0.7, -math.inf)
    scale = draw(st.sampled_from([None, 0.3, -0.2]))
    return q, k, v, mask, causal, scale


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from([1, 7, 40, 1 << 20]))
def test_equals_the_definition_for_any_block_of_rows(case, score_elements):
    q, k, v, mask, causal, scale = case
    out, lse = attention(q, k, v, mask, is_causal=causal, scale=scale, dtype=F64, score_elements=score_elements)
    want, want_lse = naive(q, k, v, mask, causal, scale)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, want_lse, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(logsumexp(q, k, mask, is_causal=causal, scale=scale, dtype=F64), want_lse)


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from([1, 2, 5, 64]))
def test_online_softmax_equals_two_pass(case, block):
    q, k, v, mask, causal, scale = case
    out, lse = online_attention(q, k, v, mask, is_causal=causal, scale=scale, block=block, dtype=F64)
    want, want_lse = attention(q, k, v, mask, is_causal=causal, scale=scale, dtype=F64)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, want_lse, rtol=1e-10, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(0, 12))
def test_two_parts_of_the_keys_merge_to_the_whole(case, cut):
    q, k, v, mask, causal, scale = case
    b, h, nq, _ = q.shape
    nkv = k.shape[2]
    if causal:  # as a mask, because the parts are not aligned to the tail
        mask = torch.ones(nq, nkv, dtype=torch.bool).tril(nkv - nq)
    whole = attention(q, k, v, mask, scale=scale, dtype=F64)
    mask = None if mask is None else mask.expand(b, h, nq, nkv)
    parts = [
        attention(q, k[:, :, s], v[:, :, s], None if mask is None else mask[..., s], scale=scale, dtype=F64)
        for s in (slice(0, cut), slice(cut, None))
    ]
    out, lse = merge(*parts[0], *parts[1])
    torch.testing.assert_close(out, whole[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, whole[1], rtol=1e-10, atol=1e-12)


def test_dead_rows_are_zero_with_lse_minus_infinity_and_finite_gradients():
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    out, lse = attention(q, k, v, mask)
    assert (out[:, :, 1] == 0).all() and (lse[:, :, 1] == -math.inf).all()
    assert torch.isfinite(lse[:, :, [0, 2, 3]]).all()
    out.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v))


def test_a_row_of_the_lowest_finite_number_is_the_mean_of_v():
    q, k, v = (torch.randn(1, 1, 2, 8) for _ in range(3))
    mask = torch.zeros(2, 2)
    mask[1] = torch.finfo(torch.float32).min
    out, lse = attention(q, k, v, mask)
    torch.testing.assert_close(out[0, 0, 1], v[0, 0].mean(0))
    assert torch.isfinite(lse).all()


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_empty_inputs_give_the_right_shapes(shape):
    b, h, nq, nkv = shape
    out, lse = attention(torch.randn(b, h, nq, 8), torch.randn(b, h, nkv, 8), torch.randn(b, h, nkv, 8))
    assert out.shape == (b, h, nq, 8) and lse.shape == (b, h, nq)
    assert (out == 0).all() and (lse == -math.inf).all()


def test_dropout_drops_the_elements_of_the_stream_after_the_row_sum():
    b, h, nq, nkv, p, stream = 2, 4, 5, 7, 0.4, (1234567890123, 8)
    q, k, v = torch.randn(b, h, nq, 8), torch.randn(b, 2, nkv, 8), torch.randn(b, 2, nkv, 8)
    out, lse = attention(q, k, v, dropout_p=p, philox=stream, dtype=F64, score_elements=3 * b * h * nkv)
    kr, vr = (t.repeat_interleave(2, 1).double() for t in (k, v))
    weights = torch.softmax(q.double() @ kr.mT * 8**-0.5, -1)
    want = (weights * keep_mask((b, h, nq, nkv), p, *stream) / (1 - p)) @ vr
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, attention(q, k, v, dtype=F64)[1])


def test_dropout_without_a_stream_is_an_error():
    q = torch.randn(1, 1, 2, 8)
    with pytest.raises(ValueError, match=r"dropout_p=0\.5: philox"):
        attention(q, q, q, dropout_p=0.5)


def test_result_dtypes():
    q = torch.randn(1, 1, 2, 8, dtype=torch.bfloat16)
    assert [t.dtype for t in attention(q, q, q)] == [torch.bfloat16, torch.float32]
    assert [t.dtype for t in attention(q, q, q, dtype=F64)] == [F64, F64]
    assert attention(q.double(), q.double(), q.double())[0].dtype == F64


def test_autocast_does_not_change_the_precision():
    q = torch.randn(1, 2, 8, 32)
    out, lse = attention(q, q, q)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, got_lse = attention(q, q, q)
        alone = logsumexp(q, q)
    assert torch.equal(got, out) and torch.equal(got_lse, lse) and torch.equal(alone, lse)
