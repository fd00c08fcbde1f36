"""Dropout: the mask is the reference's bit for bit, repeats under a seed, and moves on in a CUDA graph."""

import pytest
import torch

from .support import DEVICE, SEED, attend, groups, kernel_of, normal, qkv, reference, relative_error, seeded

GROUPS = pytest.mark.parametrize("group", groups("prefill", "dropout"))


def identity_values(batch, heads, length, dtype=torch.bfloat16):
    """V = I: then O[q, k] is the dropped and rescaled weight of key k, so O shows the mask."""
    return torch.eye(length, device=DEVICE, dtype=dtype).expand(batch, heads, length, length).contiguous()


@GROUPS
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "q_len", "length", "p"),
    [
        (1, 1, 1, 512, 512, 0.01),
        (2, 3, 3, 515, 512, 0.3),
        (1, 4, 2, 577, 1024, 0.9),
        (2, 2, 1, 600, 520, 0.5),
        (1, 1, 1, 4, 1024, 0.5),
    ],
)
def test_mask_is_the_references_bit_for_bit(group, batch, heads, kv_heads, q_len, length, p):
    q, k = (normal(batch, h, n, length, seed=s) for s, (h, n) in enumerate([(heads, q_len), (kv_heads, length)]))
    v = identity_values(batch, kv_heads, length)
    backend = group.backend(q, dropout_p=p)
    # Small logits keep every weight far above the smallest 16-bit number.
    kept = seeded(attend, q, k, v, dropout_p=p, scale=1e-2, backend=backend) != 0
    expected = seeded(reference, q, k, v, dropout_p=p, scale=1e-2) != 0
    assert torch.equal(kept, expected)
    rate, sigma = kept.double().mean().item(), (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(rate - (1 - p)) < 6 * sigma


def kept_weights(call, q, k, length, **options):
    """Which weights a call keeps: O shows those of as many keys as V has columns, and every call draws the same."""
    kept = []
    for first in range(0, length, k.shape[-1]):
        v = torch.zeros_like(k)
        column = torch.arange(first, min(first + k.shape[-1], length), device=DEVICE)
        v[:, :, column, column - first] = 1
        kept.append(seeded(call, q, k, v, scale=1e-2, **options)[..., : len(column)] != 0)
    return torch.cat(kept, -1)


@pytest.mark.parametrize("length", [513, 1022, 1023])
def test_mask_is_the_references_where_a_row_does_not_start_at_a_block_of_words(length):
    q, k, v = qkv(2, 3, 515, length, 64)
    kernel_of(q, k, v, dropout_p=0.3)
    kept = kept_weights(attend, q, k, length, dropout_p=0.3)
    assert torch.equal(kept, kept_weights(reference, q, k, length, dropout_p=0.3))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("blocks_before", [0, 5, 1000, 200_000])
def test_mask_is_the_references_where_the_high_half_of_the_counter_changes(blocks_before, head_dim, monkeypatch):
    """Kernels share work between counters with the same high half; here some tiles have two."""
    drawn = torch.tensor([0x123456789ABCDEF, (77 << 32) - blocks_before], device=DEVICE)
    monkeypatch.setattr("ffpa_attn.philox.draw", lambda device: drawn)
    q, k, v = qkv(1, 2, 640, 1024, head_dim)
    kernel_of(q, k, v, dropout_p=0.3)
    kept = kept_weights(attend, q, k, 1024, dropout_p=0.3)
    assert torch.equal(kept, kept_weights(reference, q, k, 1024, dropout_p=0.3))


@pytest.mark.parametrize("head_dim", [8, 72, 320, 768])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_output_agrees_with_the_reference_unasked(head_dim, is_causal, dtype):
    q, k, v = qkv(1, 4, 577, 800, head_dim, dtype, kv_heads=2)
    options = {"dropout_p": 0.2, "is_causal": is_causal}
    kernel_of(q, k, v, **options)
    out, expected = seeded(attend, q, k, v, **options), seeded(reference, q, k, v, **options)
    assert relative_error(out, expected) < (5e-3 if dtype == torch.bfloat16 else 8e-4)


@GROUPS
def test_same_seed_same_result_and_calls_in_a_row_differ(group):
    inputs = qkv(1, 2, 640, 640, 128)
    options = {"dropout_p": 0.5, "backend": group.backend(inputs[0], dropout_p=0.5)}
    first, second = seeded(attend, *inputs, **options), attend(*inputs, **options)
    assert torch.equal(first, seeded(attend, *inputs, **options))
    assert torch.equal(second, attend(*inputs, **options))
    assert relative_error(first, second) > 0.1


def test_successive_calls_draw_independent_masks():
    """Two calls must not share a stretch of the random stream: kept in both happens (1-p)^2 of the time."""
    length = 512
    q, k, v = normal(1, 1, 512, length), normal(1, 1, length, length, seed=1), identity_values(1, 1, length)
    kernel_of(q, k, v, dropout_p=0.5)
    a, b = (attend(q, k, v, dropout_p=0.5, scale=1e-2).flatten() != 0 for _ in range(2))
    for shift in (0, 1, 4, 512):
        both = (a & b.roll(shift)).double().mean().item()
        assert abs(both - 0.25) < 6 * (0.25 * 0.75 / a.numel()) ** 0.5


@GROUPS
def test_lse_is_that_of_the_call_without_dropout(group):
    inputs = qkv(1, 2, 640, 640, 128)
    _, lse = attend(*inputs, dropout_p=0.5, return_lse=True, backend=group.backend(inputs[0], dropout_p=0.5))
    _, plain = attend(*inputs, return_lse=True)
    torch.testing.assert_close(lse, plain, atol=1e-5, rtol=1e-6)


@GROUPS
def test_graph_replays_draw_new_masks_and_follow_the_seed(group):
    inputs = qkv(1, 2, 640, 640, 128)
    options = {"dropout_p": 0.5, "backend": group.backend(inputs[0], dropout_p=0.5)}
    eager = [seeded(attend, *inputs, **options), attend(*inputs, **options)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(*inputs, **options)
    torch.manual_seed(SEED)
    replayed = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        replayed.append(out.clone())
    assert torch.equal(replayed[0], eager[0]) and torch.equal(replayed[1], eager[1])


@GROUPS
def test_decode_with_dropout_agrees_with_the_reference(group):
    """By a prefill kernel: those for decode have no dropout."""
    q, k, v = qkv(2, 8, 3, 4096, 128, kv_heads=2)
    options = {"dropout_p": 0.3, "is_causal": True}
    out = seeded(attend, q, k, v, backend=group.backend(q, dropout_p=0.3), **options)
    assert relative_error(out, seeded(reference, q, k, v, **options)) < 5e-3


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_a_probability_out_of_range_is_refused_by_name(p):
    with pytest.raises(ValueError, match="dropout_p"):
        attend(*qkv(1, 2, 512, 512, 64), dropout_p=p)
