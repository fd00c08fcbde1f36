"""Every kernel that the installed packs have for this device, by name: those that calls take unasked, those of other
depths and accumulators, and those of architectures that are not at hand, compiled for this one within their own shared
memory."""

import pytest
import torch

from .support import DTYPES, KERNELS, attend, check, kernel_of, naming, normal, qkv, reference, relative_error, seeded

PREFILL = [kernel for kernel in KERNELS if "prefill" in kernel.problems]
DECODE = [kernel for kernel in KERNELS if "decode" in kernel.problems]


def with_features(kernels, *features):
    """Parameters of a test: the kernels that have exactly these."""
    return [pytest.param(kernel, id=kernel.id) for kernel in kernels if sorted(kernel.features) == sorted(features)]


def inputs(kernel, batch, heads, q_len, kv_len, kv_heads=None, head_dim=None):
    return qkv(batch, heads, q_len, kv_len, head_dim or kernel.head_dim, DTYPES[kernel.dtype], kv_heads)


def check_kernel(kernel, tensors, **options):
    assert check(*tensors, backend=naming(kernel), **options)[0] == kernel.id


def aligned(kernel, length):
    """A length near this one at which the kernel reads masks: the hopper family does where rows start on 16 bytes."""
    return length // 16 * 16 if kernel.family == "hopper" else length


def masks(kernel, rows, columns, *leading):
    """A boolean mask [rows, columns] and an additive one [..., 1, columns], in the dtypes that the kernel reads."""
    dtype = torch.float32 if "bias32" in kernel.features else DTYPES[kernel.dtype]
    boolean = normal(rows, columns, seed=7) > -0.67
    boolean[:, 0] = True
    additive = normal(*leading, 1, columns, dtype=dtype, seed=8)
    return (additive,) if dtype == torch.float32 else (boolean, additive)


@pytest.mark.parametrize("kernel", with_features(PREFILL))
def test_prefill_is_as_exact_as_sdpa(kernel):
    check_kernel(kernel, inputs(kernel, 2, 2, 640, 640))
    check_kernel(kernel, inputs(kernel, 1, 2, 520, 1101), is_causal=True)
    check_kernel(kernel, inputs(kernel, 2, 6, 515, 601, kv_heads=2))
    check_kernel(kernel, inputs(kernel, 1, 2, 520, 700, head_dim=kernel.head_dim - 24), is_causal=True)


@pytest.mark.parametrize("kernel", with_features(PREFILL))
def test_prefill_reads_transposed_and_expanded_inputs(kernel):
    q, k, v = inputs(kernel, 2, 2, 577, 640)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    check_kernel(kernel, (q, k[:1, :1].expand(2, 2, -1, -1), v[:1].expand(2, -1, -1, -1)))


@pytest.mark.parametrize("kernel", with_features(PREFILL, "bias") + with_features(PREFILL, "bias32"))
def test_prefill_with_a_mask_is_as_exact_as_sdpa(kernel):
    keys = aligned(kernel, 601)
    tensors = inputs(kernel, 2, 6, 515, keys, kv_heads=2)
    for mask in masks(kernel, 515, keys, 2, 1):
        check_kernel(kernel, tensors, attn_mask=mask)


@pytest.mark.parametrize(
    "kernel",
    [parameter for mask in ([], ["bias"], ["bias32"]) for parameter in with_features(PREFILL, *mask, "dropout")],
)
def test_prefill_with_dropout_agrees_with_the_reference(kernel):
    tensors = inputs(kernel, 1, 4, 515, 601, kv_heads=2)
    options = {"dropout_p": 0.2}
    if len(kernel.features) > 1:
        options["attn_mask"] = masks(kernel, 515, 601, 1, 4)[-1]
    backend = naming(kernel)
    assert kernel_of(*tensors, backend=backend, **options) == kernel.id
    out, expected = seeded(attend, *tensors, backend=backend, **options), seeded(reference, *tensors, **options)
    assert relative_error(out, expected) < (5e-3 if kernel.dtype == "bf16" or kernel.acc == "f16" else 8e-4)


@pytest.mark.parametrize("kernel", [pytest.param(kernel, id=kernel.id) for kernel in PREFILL])
def test_results_repeat_bit_for_bit(kernel):
    """A race shows now and then, and in few elements: more blocks than the card has room for, many times; with all
    columns, and with most of them beyond the tensor, where copies end sooner."""
    keys = aligned(kernel, 1101)
    options = {"backend": naming(kernel), "return_lse": True}
    if {"bias", "bias32"} & set(kernel.features):
        options["attn_mask"] = masks(kernel, 1040, keys)[0]
    if "dropout" in kernel.features:
        options["dropout_p"] = 0.2
    for head_dim in (kernel.head_dim, kernel.head_dim // 3 // 8 * 8):
        q, k, v = inputs(kernel, 2, 16, 1040, keys, kv_heads=8, head_dim=head_dim)
        first, first_lse = seeded(attend, q, k, v, **options)
        wrong = 0
        for _ in range(10):
            out, lse = seeded(attend, q, k, v, **options)
            wrong = wrong + (out != first).sum() + (lse != first_lse).sum()
        assert wrong.item() == 0, f"head dim {head_dim}: {wrong.item()} numbers differ"


@pytest.mark.parametrize("kernel", with_features(DECODE))
def test_decode_is_as_exact_as_sdpa(kernel):
    check_kernel(kernel, inputs(kernel, 2, 8, 1, 3001, kv_heads=2))
    check_kernel(kernel, inputs(kernel, 1, 16, 7, 2000, kv_heads=1), is_causal=True)
    check_kernel(kernel, inputs(kernel, 1, 3, 2, 1537, head_dim=kernel.head_dim - 24))


@pytest.mark.parametrize("kernel", with_features(DECODE, "bias") + with_features(DECODE, "bias32"))
def test_decode_with_a_mask_is_as_exact_as_sdpa(kernel):
    tensors = inputs(kernel, 2, 8, 3, 2000, kv_heads=2)
    for mask in masks(kernel, 3, 2000, 2, 1):
        check_kernel(kernel, tensors, attn_mask=mask)
