"""Philox4x32-10 random numbers, the stream that dropout uses in the kernels and in the reference.

Element (b, h, q, k) of the score tensor has the number n = offset + ((b * H + h) * Nq + q) * Nkv + k. Its random word
is word n mod 4 of the block whose 128-bit counter is n div 4 (low two words; the high two are 0) under the 64-bit key
`seed`, so four neighbours in a row share one block. The uniform is u = (word >> 8) * 2^-24, in [0, 1); an element is
kept when u > p, compared in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox4x32(counter: Tensor, seed: int | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words for each counter.

    Args:
        counter: int64, the low 64 bits of the counter; the high 64 bits are 0.
        seed: the 64-bit key, a number or an int64 scalar.

    Returns:
        Four int64 tensors shaped like `counter`, values in [0, 2^32).
    """
    c0 = counter & _MASK
    c1 = (counter >> 32) & _MASK
    c2 = torch.zeros_like(c0)
    c3 = torch.zeros_like(c0)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(index: Tensor, seed: int | Tensor) -> Tensor:
    """float32 uniforms in [0, 1) for the element numbers `index` (int64, offset included)."""
    words = torch.stack(philox4x32(index >> 2, seed), dim=-1)
    word = words.gather(-1, (index & 3).unsqueeze(-1)).squeeze(-1)
    return (word >> 8).to(torch.float32) * 2.0**-24


def draw(device: torch.device) -> Tensor:
    """A key and an offset for one call, drawn from torch's default generator of `device`.

    Returns:
        int64 [2] on `device`: the key, and the offset in blocks of four words, as kernels read them.

    One draw of torch's own, so that it repeats after `torch.manual_seed`, is captured into a CUDA graph, and gives the
    same numbers in a replay as in an eager call.
    """
    return torch.randint(2**60, (2,), dtype=torch.int64, device=device)


def stream_of(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """(seed, offset in words) of a `draw`, as scalars on its device: numbers would wait for it and break a graph."""
    seed, blocks = drawn.unbind()
    return seed, 4 * blocks


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    # int64 wraps modulo 2^64, so the bits of the unsigned product are right although the sign is not
    product = a * b
    return (product >> 32) & _MASK, product & _MASK
