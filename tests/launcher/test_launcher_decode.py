"""Decode: how the keys are split, and that both kernels of a split call are launched with their workspace."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from launcher_fakes import FakeDriver, Kernel, Launcher, Problem, cubin

from ffpa_attn.device import DeviceInfo
from ffpa_attn.launch import prepare
from ffpa_attn.recipes import launch_spec, split_count

DECODE = Kernel(id="native.split_kv", recipe="split_kv").with_(tile_m=16, tile_n=64)
MERGE = Kernel(id="native.merge", recipe="merge").with_(tile_m=1, tile_n=1, sha256="2" * 64)
H200 = DeviceInfo(0, "stand-in", (9, 0), 232448, 132)


@given(st.integers(1, 4096), st.integers(1, 512), st.integers(1, 4096))
def test_the_fewest_splits_with_nearly_full_waves(units: int, slots: int, tiles: int) -> None:
    def efficiency(splits: int) -> float:
        waves = units * splits / slots
        return waves / math.ceil(waves)

    chosen = split_count(units, slots, tiles)
    limit = max(1, min(128, slots, tiles))
    assert 1 <= chosen <= limit
    if units >= 0.8 * slots:
        assert chosen == 1
        return
    fewest = {-(-tiles // splits): splits for splits in range(limit, 0, -1)}.values()
    best = max(efficiency(splits) for splits in fewest)
    assert efficiency(chosen) >= 0.95 * best
    assert all(efficiency(splits) < 0.95 * best for splits in fewest if splits < chosen)


@given(
    batch=st.integers(1, 8),
    kv_heads=st.integers(1, 16),
    group=st.sampled_from([1, 2, 8, 32]),
    q_len=st.integers(1, 7),
    kv_len=st.integers(1, 200_000),
)
def test_the_splits_cover_every_key_and_none_is_empty(
    batch: int, kv_heads: int, group: int, q_len: int, kv_len: int
) -> None:
    problem = Problem(batch, kv_heads * group, kv_heads, q_len, kv_len, 64)
    spec = launch_spec(DECODE, problem, H200)
    assert spec.kv_per_split % DECODE.tile_n == 0
    assert (spec.splits - 1) * spec.kv_per_split < kv_len <= spec.splits * spec.kv_per_split
    assert spec.q_tiles == math.ceil(group * q_len / DECODE.tile_m)
    assert spec.grid == (spec.splits * spec.q_tiles * kv_heads * batch, 1, 1)


@pytest.mark.parametrize("want_lse", [False, True])
def test_a_split_call_launches_the_merge_after_it(
    want_lse: bool, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query = torch.zeros(2, 8, 3, 64, dtype=torch.bfloat16)
    key = torch.zeros(2, 2, 5000, 64, dtype=torch.bfloat16)
    launch = prepare(
        DECODE,
        cubin(),
        Problem.of(query, key),
        query,
        key,
        key,
        None,
        want_lse,
        merge=(MERGE, cubin),
        launcher=launcher,
        device=device,
    )
    result = launch(query, key, key)
    assert isinstance(result, tuple) == want_lse
    main, merge = fake.record(0), fake.record(1)
    splits = main.params.splits
    assert splits > 1 and main.grid == (splits * 1 * 2 * 2, 1, 1) and merge.grid == (2 * 8 * 3, 1, 1)
    assert main.params.partial_o and main.params.partial_stats
    assert bytes(main.params) == bytes(merge.params)


def test_a_call_that_is_not_split_needs_no_merge(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    query, key = (torch.zeros(1, 2, n, 64, dtype=torch.bfloat16) for n in (1, 64))
    args = (DECODE, cubin(), Problem.of(query, key), query, key, key, None, False)
    prepare(*args, launcher=launcher, device=device)(query, key, key)
    assert fake.launches() == 1 and fake.record().params.splits == 1
    long = torch.zeros(1, 2, 64 * 100, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="without a kernel that merges"):
        prepare(
            DECODE, cubin(), Problem.of(query, long), query, long, long, None, False, launcher=launcher, device=device
        )
