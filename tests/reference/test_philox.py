"""The random stream against published values and its own definition in Python integers."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ffpa_attn.philox import draw, philox4x32, stream_of, uniform
from ffpa_attn.reference import keep_mask


def block(counter: int, seed: int) -> list[int]:
    c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_known_answer_of_a_zero_counter_and_key():
    words = philox4x32(torch.tensor([0]), 0)
    assert [int(w) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**62), st.integers(0, 2**64 - 1))
def test_words_equal_integer_arithmetic(counter, seed):
    assert [int(w) for w in philox4x32(torch.tensor([counter]), seed)] == block(counter, seed)


def test_four_neighbours_share_a_block():
    seed, n = 99, 4 * 2**31
    values = uniform(torch.arange(n, n + 4), seed)
    assert values.dtype == torch.float32
    assert [int(v * 2**24) for v in values.tolist()] == [w >> 8 for w in block(n // 4, seed)]


def test_uniforms_fill_the_unit_interval():
    values = uniform(torch.arange(1 << 16), 7)
    assert 0 <= values.min() and values.max() < 1
    assert abs(float(values.mean()) - 0.5) < 0.005


def test_rows_of_the_keep_mask_are_a_part_of_the_whole():
    whole = keep_mask((2, 3, 10, 7), 0.3, 5, 12)
    assert whole.shape == (2, 3, 10, 7)
    assert torch.equal(keep_mask((2, 3, 10, 7), 0.3, 5, 12, rows=(4, 9)), whole[:, :, 4:9])
    index = ((1 * 3 + 2) * 10 + 6) * 7 + 5 + 12
    assert bool(whole[1, 2, 6, 5]) == bool(uniform(torch.tensor([index]), 5) > 0.3)


def test_a_draw_repeats_under_the_same_seed_and_moves_on():
    device = torch.device("cpu")
    torch.manual_seed(3)
    first, second = draw(device), draw(device)
    torch.manual_seed(3)
    assert torch.equal(first, draw(device)) and not torch.equal(first, second)
    assert first.dtype == torch.int64 and first.shape == (2,) and (first >= 0).all()


def test_a_draw_counts_blocks_and_a_stream_words():
    assert stream_of(torch.tensor([5, 40])) == (5, 160)
