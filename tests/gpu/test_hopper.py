"""The hopper family: tile edges of each head dim, the order of causal tiles, and the pair of blocks at D = 1024."""

import pytest
import torch

from ffpa_attn import CUDABackend

from .support import (
    CEILING,
    DTYPES,
    KERNELS,
    attend,
    attention_f64,
    check,
    kernel_of,
    naming,
    normal,
    qkv,
    relative_error,
    route_of,
)

# Query rows of a tile and keys of a step.
TILES = {
    64: (192, 128),
    128: (128, 176),
    192: (128, 128),
    256: (128, 96),
    320: (128, 64),
    384: (64, 128),
    512: (64, 128),
    640: (64, 128),
    768: (64, 64),
    1024: (64, 256),
}

STAYING = [pytest.param(kernel, id=kernel.id) for kernel in KERNELS if kernel.persistent]

MASKED_KEYS = {128: 128, 256: 80}  # where a mask makes the tile shorter


def hopper_qkv(*sizes, dtype=torch.bfloat16, **options):
    """Inputs of a call that the hopper kernel of exactly this head dim runs; skips where the packs lack it."""
    tensors = qkv(*sizes, dtype, **options)
    route, _ = route_of(*tensors)
    if route.kernel.family != "hopper" or route.kernel.head_dim != sizes[-1]:
        pytest.skip(f"the installed packs have no hopper kernel for head dim {sizes[-1]}")
    return tensors


@pytest.mark.parametrize("head_dim", TILES)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_lengths_around_whole_tiles(head_dim, is_causal, past):
    rows, keys = TILES[head_dim]
    q_len = (640 + rows - 1) // rows * rows + past
    kv_len = (1024 + keys - 1) // keys * keys + past
    check(*hopper_qkv(1, 2, q_len, kv_len, head_dim), is_causal=is_causal)


@pytest.mark.parametrize("head_dim", TILES)
@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize("past", [-8, -1, 0, 1])
def test_masks_around_whole_tiles(head_dim, kind, past, dtype):
    """Heads beyond one group of the order of tiles, a mask for each batch, and rows that end within 16 bytes."""
    rows, keys = TILES[head_dim]
    keys = MASKED_KEYS.get(head_dim, keys)
    q_len, kv_len = (640 + rows - 1) // rows * rows + past, 2 * keys * (640 // keys) + past
    q, k, v = hopper_qkv(2, 5, q_len, kv_len, head_dim, dtype=dtype, kv_heads=1)
    mask = aligned_mask(kind, 2, 1, q_len, kv_len, dtype=dtype)
    assert kernel_of(q, k, v, attn_mask=mask).startswith("hopper.")
    check(q, k, v, attn_mask=mask)


def aligned_mask(kind, *shape, dtype=torch.bfloat16):
    """Rows start on 16 bytes, whatever their length."""
    storage = normal(*shape[:-1], (shape[-1] + 15) // 16 * 16, dtype=dtype, seed=11)
    mask = storage[..., : shape[-1]]
    if kind == "bool":
        mask = (storage > -0.67)[..., : shape[-1]]
        mask[..., 0] = True
    return mask


@pytest.mark.parametrize("head_dim", TILES)
@pytest.mark.parametrize("kind, past", [("bool", 0), ("additive", -8), ("additive", 0), ("additive", 1)])
def test_a_mask_of_one_row_gives_the_bits_of_one_written_out(head_dim, kind, past):
    """Not the same bits: a boolean mask written out has no place that attends in rows past the end, and a warp that
    holds such rows beside real ones takes the way of large maxima, which rounds otherwise."""
    rows, keys = TILES[head_dim]
    keys = MASKED_KEYS.get(head_dim, keys)
    q_len, kv_len = (640 + rows - 1) // rows * rows + past, 2 * keys * (640 // keys) + past
    q, k, v = hopper_qkv(2, 4, q_len, kv_len, head_dim, kv_heads=2)
    row = aligned_mask(kind, 2, 1, 1, kv_len)
    all_rows = aligned_mask(kind, 2, 1, q_len, kv_len).copy_(row)
    kernels = {kernel_of(q, k, v, attn_mask=mask) for mask in (row, all_rows)}
    assert len(kernels) == 1 and kernels.pop().startswith("hopper.")
    results = [attend(q, k, v, attn_mask=mask, return_lse=True) for mask in (row, all_rows)]
    assert all(torch.equal(of_row, of_all) for of_row, of_all in zip(*results, strict=True))
    check(q, k, v, attn_mask=row)


def test_a_mask_at_an_odd_address_is_served_too():
    """The same shape and strides as a mask before, but off 16 bytes: the plan of that one must not take it."""
    q, k, v = hopper_qkv(1, 2, 520, 704, 128)
    storage = normal(520, 720, seed=11)
    on, off = storage[:, :704], storage[:, 1:705]
    assert kernel_of(q, k, v, attn_mask=on).startswith("hopper.")
    assert not kernel_of(q, k, v, attn_mask=off).startswith("hopper.")
    for mask in (on, off, on, off):
        expected, _ = attention_f64(q, k, v, attn_mask=mask)
        assert relative_error(attend(q, k, v, attn_mask=mask), expected) < CEILING[q.dtype]


@pytest.mark.parametrize("head_dim", TILES)
def test_masked_results_repeat_bit_for_bit(head_dim):
    q, k, v = hopper_qkv(2, 8, 2100, 2100, head_dim, kv_heads=2)
    mask = aligned_mask("additive", 2, 8, 2100, 2100)
    first = attend(q, k, v, attn_mask=mask, return_lse=True)
    for _ in range(20):
        again = attend(q, k, v, attn_mask=mask, return_lse=True)
        assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])


@pytest.mark.parametrize("head_dim", [64, 128, 512, 1024])
def test_every_causal_tile_of_many_heads_is_computed_once(head_dim):
    """Heads beyond one group of the order of tiles, in groups that do not divide them, with shared KV heads."""
    q, k, v = hopper_qkv(3, 50, 520, 777, head_dim, kv_heads=25)
    out = attend(q, k, v, is_causal=True)
    same = CUDABackend(kernel=kernel_of(q, k, v, is_causal=True))  # one head alone may run a kernel with other tiles
    for b, h in ((0, 0), (0, 47), (0, 48), (1, 0), (1, 49), (2, 31), (2, 49)):
        one = [q[b : b + 1, h : h + 1], *(x[b : b + 1, h // 2 : h // 2 + 1] for x in (k, v))]
        assert torch.equal(out[b : b + 1, h : h + 1], attend(*one, is_causal=True, backend=same))
    expected, _ = attention_f64(q[2:], k[2:], v[2:], is_causal=True)
    assert relative_error(out[2:], expected) < CEILING[q.dtype]


@pytest.mark.parametrize("kernel", STAYING)
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_lengths_around_whole_tiles_of_a_kernel(kernel, past):
    rows, keys = kernel.tile_m, kernel.tile_n
    tensors = qkv(
        1, 2, -(-640 // rows) * rows + past, 1024 // keys * keys + past, kernel.head_dim, DTYPES[kernel.dtype]
    )
    options = {"attn_mask": aligned_mask("bool", *[x.shape[2] for x in tensors[:2]])} if kernel.features else {}
    assert check(*tensors, backend=naming(kernel), **options)[0] == kernel.id


@pytest.mark.parametrize("kernel", STAYING)
@pytest.mark.parametrize("kind", ["full", "causal", "short causal"])
def test_blocks_that_stay_compute_all_their_tiles(kernel, kind):
    """Two to four tiles a block, the last round incomplete, and with few steps a tile, so that a block's tiles overlap
    in the ring; twice, for what one block does to another's tile would not repeat."""
    if kernel.features and kind != "full":
        pytest.skip("a call has a mask or is causal")
    batch, heads, q_len, kv_len = (2, 24, 1100, 1150) if kind != "short causal" else (3, 50, 512, 512)
    q, k, v = qkv(batch, heads, q_len, kv_len, kernel.head_dim, DTYPES[kernel.dtype], kv_heads=heads // 2)
    options = {"is_causal": kind != "full", "backend": naming(kernel), "return_lse": True}
    if kernel.features:
        options["attn_mask"] = aligned_mask("additive", batch, heads, q_len, kv_len, dtype=q.dtype)
    out, lse = attend(q, k, v, **options)
    for _ in range(3):
        again = attend(q, k, v, **options)
        assert torch.equal(again[0], out) and torch.equal(again[1], lse)
    for b in range(batch):
        mask = options["attn_mask"][b : b + 1] if kernel.features else None
        expected, _ = attention_f64(*(x[b : b + 1] for x in (q, k, v)), is_causal=kind != "full", attn_mask=mask)
        errors = [relative_error(x, y) for x, y in zip(out[b], expected[0], strict=True)]
        assert max(errors) < CEILING[q.dtype], (b, errors)


@pytest.mark.parametrize("head_dim", [512, 768])
def test_one_head_fills_the_cache(head_dim):
    """Keys so many that a group of causal heads is a single one."""
    check(*hopper_qkv(1, 3, 600, 20000, head_dim), is_causal=True)


@pytest.mark.parametrize("head_dim", TILES)
@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_zero_and_negative_scales(head_dim, scale, dtype):
    q, k, v = hopper_qkv(1, 2, 520, 700, head_dim, dtype=dtype)
    out, lse = attend(q, k, v, scale=scale, is_causal=True, return_lse=True)
    expected, expected_lse = attention_f64(q, k, v, scale=scale, is_causal=True)
    assert relative_error(out, expected) < CEILING[dtype]
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("head_dim", TILES)
@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize("scale", [0.0, -0.5, 1.0])
def test_masks_with_any_scale(head_dim, kind, scale):
    """The last keys, which come first, are masked for most rows, and all keys for one."""
    q, k, v = hopper_qkv(1, 2, 520, 704, head_dim)
    mask = aligned_mask(kind, 1, 2, 520, 704)
    hidden = False if kind == "bool" else -torch.inf
    mask[:, :, 3:, 400:] = hidden
    mask[:, :, 7] = hidden
    assert kernel_of(q, k, v, attn_mask=mask, scale=scale).startswith("hopper.")
    out, lse = attend(q, k, v, attn_mask=mask, scale=scale, return_lse=True)
    expected, expected_lse = attention_f64(q, k, v, attn_mask=mask, scale=scale)
    assert relative_error(out, expected) < CEILING[q.dtype]
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3, rtol=1e-5)
    assert (out[:, :, 7] == 0).all() and (lse[:, :, 7] == -torch.inf).all()


@pytest.mark.parametrize("head_dim", TILES)
def test_results_repeat_bit_for_bit(head_dim):
    tensors = hopper_qkv(2, 8, 2100, 2100, head_dim, kv_heads=2)
    first = attend(*tensors, is_causal=True, return_lse=True)
    for _ in range(20):
        again = attend(*tensors, is_causal=True, return_lse=True)
        assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])


def test_head_dims_between_the_compiled_ones_take_the_next_kernel():
    hopper_qkv(1, 2, 520, 700, 512)
    tensors = qkv(1, 2, 520, 700, 456)
    assert kernel_of(*tensors).startswith("hopper.")
    check(*tensors, is_causal=True)
