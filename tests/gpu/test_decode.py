"""Decode: one to seven queries against a long K and V, split over the card and merged by LSE."""

import itertools

import pytest
import torch

from .support import (
    HEAD_DIMS,
    attend,
    attention_f64,
    check,
    groups,
    kernel_of,
    normal,
    qkv,
    relative_error,
    route_of,
    skip_without_decode_kernels,
)

GROUPS = pytest.mark.parametrize("group", groups("decode"))
MASKED = pytest.mark.parametrize("group", groups("decode", "bias"))


def check_unasked(q, k, v, **options):
    """As ``check``, and the kernel must be one made for decode."""
    skip_without_decode_kernels()
    route, _ = route_of(q, k, v, **options)
    assert "decode" in route.kernel.problems, route.kernel.id
    check(q, k, v, **options)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_dim(head_dim, dtype):
    check_unasked(*qkv(2, 16, 1, 3001, head_dim, dtype))


@GROUPS
@pytest.mark.parametrize("q_len", range(1, 8))
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_query_rows_and_groups(q_len, is_causal, group):
    for kv_heads in (16, 4, 2, 1):
        q, k, v = qkv(2, 16, q_len, 1537, 128, kv_heads=kv_heads)
        check(q, k, v, is_causal=is_causal, backend=group.backend(q))


@GROUPS
@pytest.mark.parametrize("kv_len", [512, 513, 640, 1023, 4096, 32768, 100001])
def test_every_split_count(kv_len, group):
    for head_dim in (128, 512):
        q, k, v = qkv(1, 16, 1, kv_len, head_dim, kv_heads=2)
        check(q, k, v, backend=group.backend(q))


@GROUPS
def test_more_units_than_the_card_has_slots(group):
    q, k, v = qkv(64, 16, 2, 515, 64)
    check(q, k, v, backend=group.backend(q))


@GROUPS
@pytest.mark.parametrize("heads", [3, 5, 17, 24])
def test_groups_that_do_not_fill_a_tile(heads, group):
    q, k, v = qkv(2, heads, 3, 2000, 72, kv_heads=1)
    check(q, k, v, is_causal=True, backend=group.backend(q))


def check_masked(group, q, k, v, mask):
    """A float32 mask that no installed kernel takes as it is, is rounded to the query's dtype; so is the oracle's."""
    backend = group.backend(q, mask)
    used = mask.to(q.dtype) if mask.dtype == torch.float32 and "bias32" not in backend.kernel else mask
    out, lse = attend(q, k, v, attn_mask=mask, backend=backend, return_lse=True)
    expected, expected_lse = attention_f64(q, k, v, attn_mask=used)
    where = f"{mask.dtype} mask {tuple(mask.shape)}, strides {mask.stride()}"
    assert relative_error(out, expected) < 3.5e-3, where
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3, rtol=1e-5, msg=lambda text: f"{where}: {text}")


@MASKED
@pytest.mark.parametrize("q_len", [1, 4, 7])
def test_masks_of_every_broadcast(q_len, group):
    q, k, v = qkv(2, 8, q_len, 2000, 128, kv_heads=2)
    sizes = itertools.product(*((1, size) for size in (2, 8, q_len, 2000)))
    for shape in sorted({shape[start:] for shape in sizes for start in (0, 1, 2)}, key=repr):
        additive = normal(*shape, seed=5)
        boolean = additive > -0.67
        boolean[..., 0] = True
        for mask in (boolean, additive, additive.float()):
            check_masked(group, q, k, v, mask)


@MASKED
def test_strides_of_the_mask_are_honoured(group):
    q, k, v = qkv(2, 8, 4, 2000, 128, kv_heads=2)
    transposed = normal(2000, 4, seed=5).T
    sliced = normal(2, 16, 8, 4001, seed=6)[:, ::2, ::2, 1::2]
    for mask in (transposed, sliced):
        for given in (mask, mask.float(), mask > -0.67):
            check_masked(group, q, k, v, given)


@MASKED
def test_fully_masked_split_and_row(group):
    q, k, v = qkv(1, 8, 4, 4096, 64, kv_heads=2)
    mask = torch.ones(4, 4096, dtype=torch.bool, device=q.device)
    mask[:, :2048] = False
    mask[2] = False
    out, lse = attend(q, k, v, attn_mask=mask, return_lse=True, backend=group.backend(q, mask))
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
