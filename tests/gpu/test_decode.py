"""Decode: one to seven queries against a long K and V, split over the card and merged by LSE."""

import pytest
import torch

from .support import (
    HEAD_DIMS,
    attend,
    attention_f64,
    check,
    kernel_of,
    normal,
    qkv,
    relative_error,
    route_of,
    skip_without_decode_kernels,
)


def check_decode(q, k, v, **options):
    """As ``check``, and the kernel must be one made for decode."""
    skip_without_decode_kernels()
    route, _ = route_of(q, k, v, **options)
    assert "decode" in route.kernel.problems, route.kernel.id
    check(q, k, v, **options)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_dim(head_dim, dtype):
    check_decode(*qkv(2, 16, 1, 3001, head_dim, dtype))


@pytest.mark.parametrize("q_len", range(1, 8))
@pytest.mark.parametrize("kv_heads", [16, 4, 2, 1])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_query_rows_and_groups(q_len, kv_heads, is_causal):
    check_decode(*qkv(2, 16, q_len, 1537, 128, kv_heads=kv_heads), is_causal=is_causal)


@pytest.mark.parametrize("kv_len", [512, 513, 640, 1023, 4096, 32768, 100001])
@pytest.mark.parametrize("head_dim", [128, 512])
def test_every_split_count(kv_len, head_dim):
    check_decode(*qkv(1, 16, 1, kv_len, head_dim, kv_heads=2))


def test_more_units_than_the_card_has_slots():
    check_decode(*qkv(64, 16, 2, 515, 64))


@pytest.mark.parametrize("heads", [3, 5, 17, 24])
def test_groups_that_do_not_fill_a_tile(heads):
    check_decode(*qkv(2, heads, 3, 2000, 72, kv_heads=1), is_causal=True)


@pytest.mark.parametrize("kind", ["bool", "additive", "per-head"])
@pytest.mark.parametrize("q_len", [1, 4])
def test_masks(kind, q_len):
    q, k, v = qkv(2, 8, q_len, 2000, 128, kv_heads=2)
    shape = (2, 8, q_len, 2000) if kind == "per-head" else (q_len, 2000)
    mask = normal(*shape, seed=5)
    check_decode(q, k, v, attn_mask=mask > -0.67 if kind == "bool" else mask)


def test_fully_masked_split_and_row():
    q, k, v = qkv(1, 8, 4, 4096, 64, kv_heads=2)
    mask = torch.ones(4, 4096, dtype=torch.bool, device=q.device)
    mask[:, :2048] = False
    mask[2] = False
    kernel_of(q, k, v, attn_mask=mask)
    out, lse = attend(q, k, v, attn_mask=mask, return_lse=True)
    expected, expected_lse = attention_f64(q, k, v, attn_mask=mask)
    assert not out[:, :, 2].any() and (lse[:, :, 2] == -torch.inf).all()
    assert relative_error(out, expected) < 3.5e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3, rtol=1e-5)


def test_cache_views_are_read_in_place():
    """A cache [B, Nmax, Hkv, D] of which a part is filled: NaN beyond it must not be read."""
    cache = torch.full((2, 2, 8192, 2, 128), torch.nan, device="cuda", dtype=torch.bfloat16)
    q, k, v = qkv(2, 16, 1, 5000, 128, kv_heads=2)
    cache[0, :, :5000], cache[1, :, :5000] = k.transpose(1, 2), v.transpose(1, 2)
    views = (cache[i, :, :5000].transpose(1, 2) for i in range(2))
    kernel_of(q, k, v)
    assert torch.equal(attend(q, *views), attend(q, k, v))


def test_rows_of_a_causal_decode_equal_single_queries_with_shorter_caches():
    q, k, v = qkv(1, 8, 4, 3000, 128, kv_heads=1)
    kernel_of(q, k, v, is_causal=True)
    out = attend(q, k, v, is_causal=True)
    for row in range(4):
        keys = 3000 - 3 + row
        one = attend(q[:, :, row : row + 1], k[:, :, :keys], v[:, :, :keys])
        assert relative_error(out[:, :, row : row + 1], one) < 4e-3


def test_halves_merge_by_lse_to_the_whole():
    q, k, v = qkv(2, 8, 1, 4096, 256, kv_heads=2)
    kernel_of(q, k, v)
    whole, whole_lse = attend(q, k, v, return_lse=True)
    halves = [attend(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 2048), slice(2048, None))]
    lse = torch.logaddexp(halves[0][1], halves[1][1])
    merged = sum(out * torch.exp(part - lse)[..., None] for out, part in halves)
    torch.testing.assert_close(lse, whole_lse, atol=1e-4, rtol=1e-5)
    assert relative_error(merged, whole) < 4e-3


def test_workspace_is_the_partials_only():
    q, k, v = qkv(4, 32, 1, 8192, 128)
    kernel_of(q, k, v)
    attend(q, k, v)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(q, k, v)
    # At most 128 splits of a float32 O and LSE.
    assert torch.cuda.max_memory_allocated() - before <= 128 * 4 * 32 * (128 + 1) * 4 + 2**20
