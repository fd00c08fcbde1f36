"""Offsets past 2^31, grids past 65535, empty inputs, and outputs that must be written whole."""

import contextlib

import pytest
import torch

from ffpa_attn import CUDABackend, ffpa_attn_func

from .support import DEVICE, attend, attention_f64, groups, kernel_of, normal, qkv, relative_error

GIB = 2**30
FP16_ERROR = 6e-4


def needs_memory(gib):
    total = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
    return pytest.mark.skipif(total < gib * GIB, reason=f"needs {gib} GiB of device memory")


def large_normal(*shape):
    """fp16 straight away: a float32 copy of these would not fit."""
    return torch.randn(shape, device=DEVICE, dtype=torch.float16)


@needs_memory(24)
def test_fused_qkv_views_whose_offsets_pass_two_to_31():
    """More than 2^31 elements lie between the first and the last row of each view."""
    fused = large_normal(1, 99866, 3, 56, 128)
    q, k, v = (x.transpose(1, 2) for x in fused.unbind(2))
    kernel_of(q, k, v)
    out = attend(q, k, v)
    last = [x[:, -1:] for x in (q, k, v)]
    assert torch.equal(out[:, -1:], attend(*(x.contiguous() for x in last)))
    expected, _ = attention_f64(last[0][:, :, -600:], *last[1:])
    assert relative_error(out[:, -1:, -600:], expected) < FP16_ERROR


@needs_memory(24)
def test_query_and_output_of_more_than_two_to_31_elements():
    heads, q_len, head_dim = 1032, 2048, 1024
    q = large_normal(1, heads, q_len, head_dim)
    k, v = large_normal(1, 1, 512, head_dim), large_normal(1, 1, 512, head_dim)
    assert q.numel() > 2**31
    kernel_of(q, k, v)
    out = attend(q, k, v)
    for head in (0, heads - 1):
        expected, _ = attention_f64(q[:, head : head + 1], k, v)
        assert relative_error(out[:, head : head + 1], expected) < FP16_ERROR


@pytest.mark.parametrize("shape", [(65544, 1, 512, 8), (1, 65544, 512, 8), (257, 257, 512, 8)])
def test_more_than_65535_heads_and_batches_run_a_kernel(shape):
    q, k, v = (large_normal(*shape) for _ in range(3))
    out = attend(q, k, v)
    same = CUDABackend(kernel=kernel_of(q, k, v))  # one head alone may run a kernel with other tiles
    for b, h in ((0, 0), (shape[0] - 1, shape[1] - 1), (shape[0] // 2, shape[1] // 2)):
        one = [x[b : b + 1, h : h + 1] for x in (q, k, v)]
        assert torch.equal(out[b : b + 1, h : h + 1], attend(*one, backend=same))
    expected, _ = attention_f64(*(x[-1:, -1:] for x in (q, k, v)))
    assert relative_error(out[-1:, -1:], expected) < 2 * FP16_ERROR


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("shape", [(65536, 8, 4, 64), (1, 65536, 10, 16)])
@torch.no_grad()
def test_many_short_sequences_are_right_on_whatever_route(shape):
    q, k, v = (large_normal(*shape) for _ in range(3))
    out = ffpa_attn_func(q, k, v)
    for part in (slice(0, 64), slice(-64, None)):
        one = [x[part] if shape[0] > 1 else x[:, part] for x in (q, k, v)]
        expected, _ = attention_f64(*one)
        assert relative_error(out[part] if shape[0] > 1 else out[:, part], expected) < 2 * FP16_ERROR


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("batch", "heads", "q_len", "kv_len"),
    [(0, 2, 512, 512), (1, 0, 512, 512), (1, 2, 0, 512), (1, 2, 0, 0), (1, 2, 512, 0), (1, 2, 1, 0), (0, 2, 0, 0)],
)
@torch.no_grad()
def test_empty_inputs_give_zeros_of_the_right_shape(batch, heads, q_len, kv_len, is_causal):
    q, k, v = qkv(batch, heads, q_len, kv_len, 64)
    out, lse = ffpa_attn_func(q, k, v, is_causal=is_causal, return_lse=True)
    assert out.shape == q.shape and out.dtype == q.dtype and lse.shape == q.shape[:3]
    assert not out.any() and not out.isnan().any()
    assert (lse == -torch.inf).all()


@contextlib.contextmanager
def fresh_memory_holds_nan():
    """In deterministic mode torch fills what torch.empty returns with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(1024, device=DEVICE).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before)


CALLS = {
    "prefill": [((2, 3, 515, 1001), {}), ((1, 2, 640, 640), {"is_causal": True})],
    "decode": [((2, 8, 1, 4097), {}), ((1, 8, 5, 600), {"is_causal": True})],
}
KINDS_AND_GROUPS = pytest.mark.parametrize(
    ("kind", "group"),
    [pytest.param(kind, *group.values, id=f"{kind}-{group.id}") for kind in CALLS for group in groups(kind)],
)


@KINDS_AND_GROUPS
@pytest.mark.parametrize("head_dim", [8, 72, 320, 1000])
def test_every_element_of_the_output_is_written(kind, group, head_dim):
    for sizes, options in CALLS[kind]:
        inputs = qkv(*sizes, head_dim)
        options = {**options, "backend": group.backend(inputs[0]), "return_lse": True}
        expected, expected_lse = attend(*inputs, **options)
        with fresh_memory_holds_nan():
            out, lse = attend(*inputs, **options)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
        assert not out.isnan().any() and not lse.isnan().any()


@KINDS_AND_GROUPS
def test_neighbours_of_the_inputs_are_not_read(kind, group):
    """NaN beside every tensor, in the padding of rows and after the last row, must not reach the output."""
    sizes, options = CALLS[kind][0]
    q, k, v = qkv(*sizes, 72)

    def surrounded(x):
        pad = torch.full((*x.shape[:2], x.shape[2] + 8, 72 + 56), torch.nan, device=DEVICE, dtype=x.dtype)
        inner = pad[:, :, : x.shape[2], :72]
        return inner.copy_(x)

    options = {**options, "backend": group.backend(q)}
    assert torch.equal(attend(*(surrounded(x) for x in (q, k, v)), **options), attend(q, k, v, **options))


def test_values_are_independent_of_masked_keys():
    """Huge keys and values past the causal diagonal must leave the rows before it as they are."""
    q, k, v = qkv(1, 1, 640, 640, 128)
    kernel_of(q, k, v, is_causal=True)
    before = attend(q, k, v, is_causal=True)
    k[:, :, 600:], v[:, :, 600:] = normal(1, 1, 40, 128, seed=5) * 100, 3e4
    assert torch.equal(attend(q, k, v, is_causal=True)[:, :, :600], before[:, :, :600])
