"""The order in which the hopper kernels deal query tiles out, compiled for the host."""

from __future__ import annotations

import ctypes
import heapq
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
SMS = 132

Deal = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def deal(tmp_path_factory: pytest.TempPathFactory) -> Deal:
    """owners and turns, [heads of all batches, q_tiles], as tile_order.cc says."""
    library = tmp_path_factory.mktemp("order") / "tile_order.so"
    source = Path(__file__).with_name("tile_order.cc")
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).deal

    def run(
        q_tiles: int,
        *,
        heads: int,
        batch: int = 1,
        group: int = 1,
        kv_len: int = 1024,
        head_dim: int = 128,
        causal: bool = False,
        masked: bool = False,
        persistent: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        tiles = q_tiles * heads * batch
        blocks = min(tiles, SMS) if persistent else tiles
        owners, turns = (np.full((heads * batch, q_tiles), -1, dtype=np.intc) for _ in range(2))
        pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_int)) for array in (owners, turns)]
        numbers = (persistent, masked, causal, batch, heads, group, kv_len, head_dim, q_tiles, blocks)
        assert function(*(int(number) for number in numbers), *pointers)
        return owners, turns

    return run


problems = st.fixed_dictionaries(
    {
        "q_tiles": st.integers(1, 70),
        "batch": st.integers(1, 3),
        "group": st.integers(1, 9),
        "kv_heads": st.integers(1, 24),
        "kv_len": st.integers(1, 200_000),
        "head_dim": st.sampled_from([8, 64, 128, 192, 256, 320, 512, 1024]),
        "kind": st.sampled_from(["full", "causal", "masked"]),
        "persistent": st.booleans(),
    }
)


@given(facts=problems)
@example(
    facts={
        "q_tiles": 11,
        "batch": 1,
        "group": 1,
        "kv_heads": 12,
        "kv_len": 2048,
        "head_dim": 64,
        "kind": "causal",
        "persistent": True,
    }
)
@settings(deadline=None, max_examples=300)
def test_every_tile_goes_to_one_block(deal: Deal, facts: dict) -> None:
    facts = dict(facts)
    kind, kv_heads = facts.pop("kind"), facts.pop("kv_heads")
    owners, _ = deal(heads=kv_heads * facts["group"], causal=kind == "causal", masked=kind == "masked", **facts)
    assert (owners >= 0).all()
    tiles_a_block = np.bincount(owners.ravel())
    assert tiles_a_block.min() >= 1  # none is launched in vain
    if kind != "causal":
        assert tiles_a_block.max() - tiles_a_block.min() <= 1


# (rows of a tile, keys of a step) of bm128
STEPS = {64: (192, 128), 128: (128, 176), 192: (128, 128), 256: (128, 96), 320: (128, 64)}


@pytest.mark.parametrize("heads", [24, 32, 40, 64])
@pytest.mark.parametrize("length", [1024, 2048, 4096, 8192, 16384])
@pytest.mark.parametrize("head_dim", STEPS)
def test_causal_shares_are_as_even_as_the_hardware_would_deal_them(
    deal: Deal, head_dim: int, length: int, heads: int
) -> None:
    rows, keys = STEPS[head_dim]
    q_tiles = -(-length // rows)
    owners, _ = deal(q_tiles, heads=heads, kv_len=length, head_dim=head_dim, causal=True)
    steps = -(-np.minimum((np.arange(q_tiles) + 1) * rows, length) // keys)
    longest = np.bincount(owners.ravel(), weights=np.tile(steps, heads)).max()
    # What starts and ends a tile costs about two steps, which a block that stays saves.
    free = [0.0] * SMS
    for tile in sorted(np.tile(steps, heads), reverse=True):
        heapq.heapreplace(free, free[0] + tile + 2)
    assert longest <= 1.05 * max(free)


def test_longest_tiles_come_first_and_heads_in_groups_that_the_cache_holds(deal: Deal) -> None:
    # 8192 keys of 256 elements: K and V of four heads; 64 tiles of four heads are 1.9 rounds.
    _, turns = deal(64, heads=32, kv_len=8192, head_dim=256, causal=True)
    groups = turns.reshape(8, 4, 64)
    for group in groups:
        assert group[:, -1].max() < group[:, 0].min()
    assert all(a.max() <= b.max() and a.min() <= b.min() for a, b in zip(groups, groups[1:], strict=False))


def test_without_a_mask_blocks_that_run_together_share_heads(deal: Deal) -> None:
    owners, turns = deal(32, heads=16)
    first = np.argwhere(turns == 0)
    assert len(first) == SMS and len(set(first[:, 0])) == -(-SMS // 32)
    assert sorted(owners[turns == 0]) == list(range(SMS))
