"""Short problems that the route sends to kernels because they were measured ahead of SDPA: the same exactness."""

import pytest
import torch

from ffpa_attn.gates import OPENINGS

from .support import HEAD_DIMS, check, qkv, route_of

LONGEST = 2100  # for ranges without an end
HEADS, KV_HEADS = 6, 2

HERE = [o for o in OPENINGS if torch.cuda.is_available() and torch.cuda.get_device_capability() == o.capability]


def lengths(low, high):
    """Both ends of a range and an odd number between them."""
    high = min(high, max(low, LONGEST))
    return sorted({low, (low + high) // 2 | 1, high})


CALLS = [
    pytest.param(opening, q_len, kv_len, head_dim, id=f"{opening.kind}-{q_len}x{kv_len}-d{head_dim}")
    for opening in HERE
    for q_len in lengths(*opening.q_lens)
    for kv_len in lengths(*opening.kv_lens)
    for head_dim in HEAD_DIMS[::3]
    if opening.head_dims[0] <= head_dim <= opening.head_dims[1]
]


@pytest.mark.parametrize(("opening", "q_len", "kv_len", "head_dim"), CALLS)
def test_opened_problems_run_on_the_kernels_that_were_measured(opening, q_len, kv_len, head_dim):
    inputs = qkv(1, HEADS, q_len, kv_len, head_dim, kv_heads=KV_HEADS)
    assert opening.kind in route_of(*inputs)[0].kernel.problems
    check(*inputs)
    if q_len <= kv_len:
        check(*inputs, is_causal=True)
