from __future__ import annotations

import math

import pytest
import torch

from ffpa_attn.problem import Problem

Q = torch.zeros(2, 4, 6, 16)
K = torch.zeros(2, 2, 9, 16)


def test_a_call_is_described():
    p = Problem.from_call(Q, K, K, torch.zeros(6, 9), dropout_p=0.25, scale=2, want_lse=True)
    assert (p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim, p.value_dim) == (2, 4, 2, 6, 9, 16, 16)
    assert (p.dtype, p.mask_kind, p.scale, p.dropout_p, p.want_lse) == ("fp32", "additive", 2.0, 0.25, True)
    assert (p.device_type, p.device_index, p.needs_grad, p.is_empty) == ("cpu", 0, False, False)
    assert Problem.from_call(Q, K, K).scale == 1 / math.sqrt(16)


@pytest.mark.parametrize(
    ("mask", "dtype", "kind"),
    [
        (torch.ones(6, 9, dtype=torch.bool), torch.float32, "boolean"),
        (torch.zeros(2, 1, 1, 9, dtype=torch.bfloat16), torch.bfloat16, "additive"),
        (torch.zeros(4, 6, 1), torch.bfloat16, "additive_f32"),
    ],
)
def test_mask_kinds(mask, dtype, kind):
    assert Problem.from_call(Q.to(dtype), K.to(dtype), K.to(dtype), mask).mask_kind == kind


@pytest.mark.parametrize(
    ("mask", "alignment"),
    [
        (None, 0),
        (torch.zeros(6, 16, dtype=torch.bool), 16),
        (torch.zeros(6, 16, dtype=torch.bool)[:1], 16),
        (torch.zeros(6, 12).bfloat16(), 8),
        (torch.zeros(6, 17).bfloat16()[:, :16], 2),
        (torch.zeros(6, 24).bfloat16()[:, 8:], 16),
        (torch.zeros(6, 24).bfloat16()[:, 2:18], 4),
        (torch.zeros(1, 17).bfloat16()[:, :16], 16),  # the stride of a single row does not matter
        (torch.zeros(16, 6).bfloat16().T, 0),
        (torch.zeros(6, 1).bfloat16(), 0),
        (torch.zeros(1, 16).bfloat16().expand(6, 16), 16),
    ],
)
def test_alignment_of_the_mask(mask, alignment):
    q, k = torch.zeros(1, 1, 6, 64).bfloat16(), torch.zeros(1, 1, 16, 64).bfloat16()
    if mask is not None and mask.shape[1] == 12:
        k = k[:, :, :12]
    assert Problem.from_call(q, k, k, mask).mask_alignment == alignment


def test_gradients_are_needed_only_where_they_are_recorded():
    q = Q.clone().requires_grad_()
    assert Problem.from_call(q, K, K).needs_grad
    assert Problem.from_call(Q, K, K, torch.zeros(6, 9, requires_grad=True)).needs_grad
    with torch.no_grad():
        assert not Problem.from_call(q, K, K).needs_grad
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(Q, torch.ones_like(Q))
        with torch.no_grad():
            assert Problem.from_call(dual, K, K).needs_grad
            assert not Problem.from_call(Q, K, K).needs_grad


@pytest.mark.parametrize(
    ("q", "k", "v", "options", "error", "text"),
    [
        ([1], K, K, {}, TypeError, r"query must be a torch.Tensor, got list"),
        (Q, K[0], K, {}, ValueError, r"key has shape \(2, 9, 16\); allowed are 4 dimensions"),
        (Q.int(), K.int(), K.int(), {}, TypeError, r"query has dtype torch.int32; allowed are torch.bfloat16"),
        (Q, K, K.bfloat16(), {}, TypeError, r"value=torch.bfloat16; cast them to one dtype or call under torch.autoc"),
        (Q, K.to("meta"), K, {}, ValueError, r"devices differ: query=cpu, key=meta"),
        (Q[:1], K, K, {}, ValueError, r"batch sizes differ: query \(1, 4, 6, 16\)"),
        (Q, K, K[:, :, :8], {}, ValueError, r"key and value differ"),
        (Q[..., :8], K, K, {}, ValueError, r"head dims differ"),
        (Q[..., :0], K[..., :0], K, {}, ValueError, r"head dim is 0"),
        (Q[:, :3], K, K, {}, ValueError, r"query has 3 heads and key has 2; .* multiple"),
        (Q, K[:, :0], K[:, :0], {}, ValueError, r"query has 4 heads and key has 0"),
        (Q.to_sparse(), K, K, {}, TypeError, r"query is a torch.sparse_coo tensor"),
        (Q, K, K, {"attn_mask": 1.0}, TypeError, r"attn_mask must be a torch.Tensor or None, got float"),
        (Q, K, K, {"attn_mask": torch.zeros(6, 9).half()}, TypeError, r"attn_mask has dtype torch.float16; allowed"),
        (Q, K, K, {"attn_mask": torch.zeros(6, 8)}, ValueError, r"attn_mask has shape \(6, 8\).*\(2, 4, 6, 9\)"),
        (Q, K, K, {"attn_mask": torch.zeros(9)}, ValueError, r"2 to 4 dimensions"),
        (Q, K, K, {"attn_mask": torch.zeros(1, 1, 1, 6, 9)}, ValueError, r"2 to 4 dimensions"),
        (Q, K, K, {"attn_mask": torch.zeros(6, 9, device="meta")}, ValueError, r"attn_mask=meta"),
        (Q, K, K, {"attn_mask": torch.zeros(6, 9), "is_causal": True}, ValueError, r"exclude each other"),
        (Q, K, K, {"is_causal": 1}, TypeError, r"is_causal=1; allowed are True and False"),
        (Q, K, K, {"want_lse": None}, TypeError, r"return_lse=None"),
        (Q, K, K, {"dropout_p": 1.0}, ValueError, r"dropout_p=1\.0; allowed is 0 <= dropout_p < 1"),
        (Q, K, K, {"dropout_p": -0.1}, ValueError, r"dropout_p=-0\.1"),
        (Q, K, K, {"dropout_p": float("nan")}, ValueError, r"dropout_p=nan"),
        (Q, K, K, {"dropout_p": "half"}, TypeError, r"dropout_p='half'"),
        (Q, K, K, {"scale": float("inf")}, ValueError, r"scale=inf; allowed are finite"),
        (Q, K, K, {"scale": "auto"}, TypeError, r"scale='auto'"),
        (Q, K[:, :, :4], K[:, :, :4], {"is_causal": True}, ValueError, r"6 queries and 4 keys"),
    ],
)
def test_a_wrong_argument_is_named(q, k, v, options, error, text):
    with pytest.raises(error, match=text):
        Problem.from_call(q, k, v, **options)


def test_causal_without_keys_is_empty_and_not_an_error():
    empty = K[:, :, :0]
    assert Problem.from_call(Q, empty, empty, is_causal=True).is_empty
