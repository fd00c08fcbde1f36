"""Prefill over every head dim, dtype and input layout, against float64."""

import pytest
import torch

from ffpa_attn import explain

from .support import (
    CEILING,
    FAMILIES,
    HEAD_DIMS,
    NATIVE,
    attend,
    attention_f64,
    check,
    kernel_of,
    normal,
    qkv,
    relative_error,
    route_of,
)


def nhd(head_dim, dtype):
    q, k, v = (normal(2, 577, 2, head_dim, dtype=dtype, seed=s) for s in range(3))
    return (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)), {}


def fused_qkv(head_dim, dtype):
    q, k, v = normal(2, 577, 3, 2, head_dim, dtype=dtype).unbind(2)
    return (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)), {}


def contiguous(batch, heads, q_len, kv_len, kv_heads=None, **options):
    return lambda head_dim, dtype: (qkv(batch, heads, q_len, kv_len, head_dim, dtype, kv_heads), options)


LAYOUTS = {
    "self": contiguous(2, 2, 640, 640),
    "cross": contiguous(1, 3, 576, 1088),
    "causal": contiguous(1, 2, 768, 768, is_causal=True),
    "causal-tail": contiguous(1, 2, 520, 1101, is_causal=True),
    "gqa": contiguous(1, 6, 512, 640, kv_heads=2),
    "mqa": contiguous(1, 5, 512, 640, kv_heads=1),
    "non-aligned": contiguous(1, 2, 515, 1001),
    "nhd": nhd,
    "fused-qkv": fused_qkv,
}


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_forward_is_as_exact_as_sdpa(family, head_dim):
    """The dtypes take turns here; `test_kernels` runs every compiled head dim in each."""
    for turn, layout in enumerate(LAYOUTS.values(), HEAD_DIMS.index(head_dim)):
        (q, k, v), options = layout(head_dim, (torch.bfloat16, torch.float16)[turn % 2])
        kernel, _ = check(q, k, v, backend=FAMILIES[family], **options)
        assert family == "auto" or kernel.startswith("native.split_d_tma" if family == "tma" else "native.split_d-")


@pytest.mark.parametrize("head_dim", [64, 320, 1024])
def test_native_can_be_asked_for(head_dim, dtype):
    q, k, v = qkv(1, 2, 600, 700, head_dim, dtype)
    kernel, _ = check(q, k, v, backend=NATIVE, is_causal=True)
    assert kernel.startswith("native.")


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_scale_is_the_callers(scale):
    check(*qkv(1, 2, 600, 700, 72), scale=scale)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_zero_and_negative_scales_are_right(scale, dtype):
    """A maximum taken before scaling would give 0 * inf, or overflow where the smallest product is the largest logit.
    SDPA's kernels do, so they are no yardstick here."""
    q, k, v = qkv(1, 2, 600, 700, 72, dtype)
    kernel_of(q, k, v, scale=scale)
    out, lse = attend(q, k, v, scale=scale, return_lse=True)
    expected, expected_lse = attention_f64(q, k, v, scale=scale)
    assert relative_error(out, expected) < CEILING[dtype]
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3, rtol=1e-5)


def test_scale_uses_the_true_head_dim_of_a_padded_call():
    q, k, v = qkv(1, 2, 512, 512, 40)
    kernel_of(q, k, v)
    assert torch.equal(attend(q, k, v), attend(q, k, v, scale=40**-0.5))


@pytest.mark.parametrize("layout", ["nhd", "fused-qkv"])
@pytest.mark.parametrize("head_dim", [72, 128, 512])
def test_views_equal_contiguous_clones_bit_for_bit_and_are_not_copied(head_dim, layout):
    views, _ = LAYOUTS[layout](head_dim, torch.bfloat16)
    clones = [x.contiguous() for x in views]
    _, copies = route_of(*views)
    assert copies == ()
    expected = attend(*clones)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = attend(*views)
    extra = torch.cuda.max_memory_allocated() - before
    assert torch.equal(out, expected)
    size = out.numel() * out.element_size()
    # The allocator rounds a block up to 512 bytes, above 1 MiB to 1 MiB; a copy of one input would double the size.
    assert extra <= size + (512 if size <= 2**20 else 2**20)


@pytest.mark.parametrize("offset", [1, 4])
def test_unaligned_pointers_and_rows_are_right(offset):
    """Columns of a wider tensor: the base is not 16-byte aligned, so the call has to copy."""
    q, k, v = (normal(1, 2, 600, 64 + 8, seed=s)[..., offset : offset + 64] for s in range(3))
    across = [x.mT.contiguous().mT for x in (q, k, v)]  # stride(-1) != 1
    for inputs in ((q, k, v), across):
        _, copies = route_of(*inputs)
        assert copies, "explain does not say that the call copies"
        check(*inputs)


def test_expanded_heads_and_batches_are_right():
    """Stride 0 along batch and head."""
    q, k, v = qkv(2, 4, 512, 600, 64)
    check(q, k[:1, :1].expand(2, 4, -1, -1), v[:1].expand(2, -1, -1, -1))


def test_large_logits_stay_finite_and_right():
    q, k, v = qkv(1, 2, 512, 1024, 128)
    q = q * 40
    kernel_of(q, k, v)
    out, lse = attend(q, k, v, return_lse=True)
    expected, expected_lse = attention_f64(q, k, v)
    assert relative_error(out, expected) < 6e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-2, rtol=1e-4)


def test_fp16_values_near_the_maximum_stay_finite():
    q, k, _ = qkv(1, 2, 512, 8192, 64, torch.float16)
    v = torch.full_like(k, 6e4)
    kernel_of(q, k, v)
    out = attend(q, k, v)
    assert out.isfinite().all() and relative_error(out, torch.full_like(out, 6e4)) < 2e-3


@pytest.mark.parametrize("kv_len", [4096, 131072])
@pytest.mark.parametrize("head_dim", [64, 128, 512])
def test_weights_of_one_hot_key_beside_many_cold_ones_add_up_to_one(head_dim, kv_len, dtype):
    q, k, v = qkv(1, 2, 512, kv_len, head_dim, dtype)
    k[:, :, kv_len // 3] = 4 * q[:, :, 7]
    kernel_of(q, k, v)
    out = attend(q, k, torch.ones_like(v))
    torch.testing.assert_close(out, torch.ones_like(out), atol=8e-3 if dtype == torch.bfloat16 else 1e-3, rtol=0)


def test_long_gqa_causal_call_needs_no_workspace():
    q, k, v = qkv(1, 8, 8192, 8192, 512, kv_heads=4)
    kernel_of(q, k, v, is_causal=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = attend(q, k, v, is_causal=True)
    assert torch.cuda.max_memory_allocated() - before - out.numel() * 2 < 256 * 2**20
    rows = slice(8192 - 600, None)
    expected, _ = attention_f64(q[:, :2, rows], k[:, :1], v[:, :1], is_causal=True)
    assert relative_error(out[:, :2, rows], expected) < 3.5e-3


def test_explain_names_a_kernel_of_the_card_and_the_reason_of_a_fallback():
    q, k, v = qkv(1, 2, 512, 512, 64)
    assert kernel_of(q, k, v).count("-") >= 4
    short = explain(q[:, :, :100], k, v)
    assert short.kernel is None and "100 queries" in short.reason
