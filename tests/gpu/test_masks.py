"""Boolean and additive attention masks: every broadcast, any strides, tails, and rows with nothing to attend to."""

import itertools

import pytest
import torch

from .support import (
    CEILING,
    DEVICE,
    UNASKED,
    attend,
    attention_f64,
    check,
    groups,
    kernel_of,
    normal,
    qkv,
    relative_error,
    route_of,
)

# Native kernels read any mask; what else a call runs, depends on the mask.
NATIVE_GROUPS = [group for group in groups("prefill", "bias") if group.id.startswith("native.")]
GROUPS = pytest.mark.parametrize("group", [UNASKED, *NATIVE_GROUPS])
KINDS = ("bool", "additive", "float32")
# Rows of a mask with 700 columns start off 16 bytes, those with 704 on them.
KV_LENS = pytest.mark.parametrize("kv_len", [700, 704])
FULL = (2, 4, 515, 700)


def broadcasts(*full):
    """[B, H, Nq, Nkv] with any set of dimensions broadcast, and the 3-D and 2-D shapes that align with its end."""
    shapes = itertools.product(*((1, size) for size in full))
    return sorted({shape[start:] for shape in shapes for start in (0, 1, 2)}, key=repr)


def make_mask(kind, shape, dtype, seed=7):
    """True in three of four places, or Gaussian; the first column always attends, so that no row is empty."""
    if kind == "bool":
        mask = normal(*shape, dtype=torch.float32, seed=seed) > -0.67
        mask[..., 0] = True
        return mask
    return normal(*shape, dtype=torch.float32 if kind == "float32" else dtype, seed=seed)


def run(group, q, k, v, mask):
    """O, LSE, and both in float64. A float32 mask that the group's kernels do not take as it is, is rounded to the
    query's dtype; so is the oracle's."""
    backend = group.backend(q, mask)
    route, _ = route_of(q, k, v, attn_mask=mask, backend=backend)
    out, lse = attend(q, k, v, attn_mask=mask, return_lse=True, backend=backend)
    expected, expected_lse = attention_f64(q, k, v, attn_mask=mask.to(q.dtype) if route.cast_mask else mask)
    return out, lse.double(), expected, expected_lse


def check_masked(group, q, k, v, mask):
    out, lse, expected, expected_lse = run(group, q, k, v, mask)
    error = relative_error(out, expected)
    where = f"mask {tuple(mask.shape)}, strides {mask.stride()}"
    assert error < CEILING[q.dtype], f"{where}: error {error:.3g}"
    torch.testing.assert_close(lse, expected_lse, atol=1e-3, rtol=1e-5, msg=lambda text: f"{where}: LSE: {text}")


@GROUPS
@KV_LENS
@pytest.mark.parametrize("kind", KINDS)
def test_every_broadcast(kind, kv_len, group):
    q, k, v = qkv(*FULL[:3], kv_len, 72)
    for shape in broadcasts(*FULL[:3], kv_len):
        check_masked(group, q, k, v, make_mask(kind, shape, q.dtype))


@pytest.mark.parametrize("head_dim", [8, 64, 128, 192, 256, 320, 384, 512, 640, 768, 1000, 1024])
@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize("kv_len", [1001, 1008])
def test_a_call_with_a_mask_is_as_exact_as_sdpa_unasked(kind, head_dim, dtype, kv_len):
    q, k, v = qkv(1, 4, 577, kv_len, head_dim, dtype, kv_heads=2)
    check(q, k, v, attn_mask=make_mask(kind, (577, kv_len), dtype))


@GROUPS
@pytest.mark.parametrize("kind", KINDS)
def test_strides_of_the_mask_are_honoured(kind, group):
    q, k, v = qkv(*FULL, 64)
    transposed = make_mask(kind, (700, 515), q.dtype).T
    expanded = make_mask(kind, (1, 1, 515, 700), q.dtype).expand(FULL)
    sliced = make_mask(kind, (2, 8, 1030, 1401), q.dtype)[:, ::2, ::2, 1:1401:2]
    for mask in (transposed, expanded, sliced):
        if kind == "bool":
            mask = mask | (torch.arange(700, device=DEVICE) == 0)
        check_masked(group, q, k, v, mask)


def test_a_compact_mask_stays_compact():
    q, k, v = qkv(1, 8, 4096, 4096, 64)
    mask = make_mask("bool", (1, 1, 1, 4096), q.dtype)
    kernel_of(q, k, v, attn_mask=mask)
    attend(q, k, v, attn_mask=mask)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = attend(q, k, v, attn_mask=mask)
    extra = torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()
    assert extra < 2**20  # the mask expanded to [Nq, Nkv] would be 16 MiB


@GROUPS
@KV_LENS
@pytest.mark.parametrize("head_dim", [64, 512, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_with_nothing_to_attend_to_is_zero_with_lse_minus_infinity(kind, head_dim, kv_len, group):
    q, k, v = qkv(1, 2, 640, kv_len, head_dim)
    mask = make_mask(kind, (640, kv_len), q.dtype)
    empty = [0, 5, 127, 128, 639]
    mask[empty] = False if kind == "bool" else -torch.inf
    out, lse, expected, expected_lse = run(group, q, k, v, mask)
    assert not out[:, :, empty].any() and (lse[:, :, empty] == -torch.inf).all()
    assert not out.isnan().any() and not lse.isnan().any()
    kept = [row for row in range(640) if row not in empty]
    assert relative_error(out[:, :, kept], expected[:, :, kept]) < CEILING[q.dtype]
    torch.testing.assert_close(lse[:, :, kept], expected_lse[:, :, kept], atol=1e-3, rtol=1e-5)


@GROUPS
@KV_LENS
@pytest.mark.parametrize("head_dim", [64, 256, 512, 1024])
@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_fully_masked_tiles_first_middle_last_and_all_but_one_key(kind, head_dim, kv_len, group):
    q, k, v = qkv(1, 2, 515, kv_len, head_dim)
    for columns in (slice(0, 256), slice(256, 512), slice(444, 700), slice(0, 699)):
        mask = make_mask(kind, (515, kv_len), q.dtype)
        mask[:, columns] = False if kind == "bool" else -torch.inf
        if kind == "bool":
            mask[:, 699 if columns.start == 0 else 0] = True
        check_masked(group, q, k, v, mask)


@GROUPS
@KV_LENS
def test_all_masked_call_is_all_zero(kv_len, group):
    q, k, v = qkv(1, 2, 515, kv_len, 128)
    out, lse, _, _ = run(group, q, k, v, torch.zeros(515, kv_len, dtype=torch.bool, device=DEVICE))
    assert not out.any() and (lse == -torch.inf).all()


@GROUPS
@KV_LENS
@pytest.mark.parametrize("head_dim", [64, 512])
@pytest.mark.parametrize("kind", ["additive", "float32"])
def test_a_row_of_the_smallest_finite_value_averages_and_is_finite(kind, head_dim, kv_len, group, dtype):
    q, k, v = qkv(1, 2, 515, kv_len, head_dim, dtype)
    mask = make_mask(kind, (515, kv_len), dtype)
    mask[3] = torch.finfo(dtype).min
    out, _, expected, _ = run(group, q, k, v, mask)
    assert out.isfinite().all()
    # -65504 leaves a few bits of each logit in float32; bfloat16's minimum leaves none, and the row is the plain mean.
    assert relative_error(out[:, :, 3], expected[:, :, 3]) < 2e-2
    assert relative_error(out, expected) < 4e-3


@GROUPS
def test_the_smallest_float32_is_not_minus_infinity(group, dtype):
    """Rounded to 16 bits it would be, and the row would be zero instead of the mean of V."""
    q, k, v = qkv(1, 2, 515, 700, 64, dtype)
    mask = torch.full((515, 700), torch.finfo(torch.float32).min, device=DEVICE)
    out = attend(q, k, v, attn_mask=mask, backend=group.backend(q, mask))
    assert out.isfinite().all() and out.abs().sum() > 0


@GROUPS
def test_padding_mask_equals_a_shorter_key(group, dtype):
    q, k, v = qkv(1, 2, 600, 1024, 128, dtype)
    mask = torch.arange(1024, device=DEVICE)[None] < 700
    expected, _ = attention_f64(q, k[:, :, :700], v[:, :, :700])
    k[:, :, 700:], v[:, :, 700:] = 1e4, 3e4
    out = attend(q, k, v, attn_mask=mask, backend=group.backend(q, mask))
    assert relative_error(out, expected) < CEILING[dtype]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((515, 701), "bool"), ((3, 1, 515, 700), "bool"), ((700,), "bool"), ((1, 1, 1, 515, 700), "bool")],
)
def test_a_mask_that_does_not_broadcast_is_refused_by_name(shape, kind):
    q, k, v = qkv(*FULL, 64)
    with pytest.raises(ValueError, match="attn_mask"):
        attend(q, k, v, attn_mask=torch.ones(shape, dtype=torch.bool, device=DEVICE))
