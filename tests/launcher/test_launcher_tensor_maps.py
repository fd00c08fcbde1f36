"""Tensor maps, and plans of more than one kernel."""

from __future__ import annotations

import pytest
import torch
from launcher_fakes import ATTENTION_BYTES, TMA_KERNEL, FakeDriver, Kernel, Launcher, Problem, cubin

from ffpa_attn.device import DeviceInfo
from ffpa_attn.errors import LaunchError
from ffpa_attn.launch import prepare, run
from ffpa_attn.recipes import LaunchSpec


@pytest.fixture
def tma_fake(fake: FakeDriver) -> FakeDriver:
    fake.reset(TMA_KERNEL.param_bytes)
    return fake


@pytest.mark.parametrize(("dtype", "element_type"), [(torch.bfloat16, 9), (torch.float16, 6)])
def test_maps_describe_the_strided_tensors(
    dtype: torch.dtype, element_type: int, launcher: Launcher, tma_fake: FakeDriver, device: DeviceInfo
) -> None:
    query = torch.zeros(2, 200, 4, 72, dtype=dtype).transpose(1, 2)
    key = torch.zeros(2, 300, 3, 1, 72, dtype=dtype)[:, :, 1].transpose(1, 2)
    value = torch.zeros(2, 1, 300, 72, dtype=dtype)
    out, _ = run(TMA_KERNEL, cubin(), Problem.of(query, key), query, key, value, launcher=launcher, device=device)

    assert tma_fake.map_count() == 3
    maps = [tma_fake.map_record(i) for i in range(3)]
    for record in maps:
        assert (record.type, record.rank, record.interleave, record.swizzle, record.fill) == (element_type, 4, 0, 3, 0)
        assert tuple(record.element_strides) == (1, 1, 1, 1)
    row = 72 * 2
    assert tuple(maps[0].dims) == (72, 200, 4, 2) and tuple(maps[0].strides) == (4 * row, row, 800 * row)
    # One head: its stride is never used, but must be a legal one.
    assert tuple(maps[1].dims) == (72, 300, 1, 2) and tuple(maps[1].strides) == (3 * row, 900 * row, 900 * row)
    assert tuple(maps[2].dims) == (72, 300, 1, 2) and tuple(maps[2].strides) == (row, 300 * row, 300 * row)
    assert [tuple(record.box) for record in maps] == [(64, 128, 1, 1), (64, 80, 1, 1), (64, 80, 1, 1)]

    record = tma_fake.record()
    assert record.map_addresses == [t.data_ptr() for t in (query, key, value)]
    assert record.tma_params.o == out.data_ptr()
    assert record.tma_params.k_stride.row == 3 * 72


def test_maps_follow_the_pointers_of_each_call(launcher: Launcher, tma_fake: FakeDriver, device: DeviceInfo) -> None:
    query, key, value = (torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16) for _ in range(3))
    launch = prepare(
        TMA_KERNEL, cubin(), Problem.of(query, key), query, key, value, None, False, launcher=launcher, device=device
    )
    launch(query, key, value)
    assert tma_fake.replaced_count() == 0
    other = value.clone()
    launch(query, key, other)
    launch(query, key, value)
    assert (tma_fake.map_count(), tma_fake.replaced_count()) == (3, 1)
    for index, last in enumerate([value, other, value]):
        assert tma_fake.record(index).map_addresses == [t.data_ptr() for t in (query, key, last)]


def test_a_map_that_the_driver_refuses_names_the_kernel(
    launcher: Launcher, tma_fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = (torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16) for _ in range(3))
    tma_fake.fail("cuTensorMapEncodeTiled", 1)
    with pytest.raises(LaunchError, match=f"{TMA_KERNEL.id}: cuTensorMapEncodeTiled failed: CUDA_ERROR_INVALID_VALUE"):
        run(TMA_KERNEL, cubin(), Problem.of(query, key), query, key, value, launcher=launcher, device=device)


def test_misaligned_inputs_of_a_map_are_copied(launcher: Launcher, tma_fake: FakeDriver, device: DeviceInfo) -> None:
    query, key = (torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16) for _ in range(2))
    value = torch.zeros(1 + query.numel(), dtype=torch.bfloat16)[1:].view(query.shape)
    launch = prepare(
        TMA_KERNEL, cubin(), Problem.of(query, key), query, key, value, None, False, launcher=launcher, device=device
    )
    launch(query, key, value)
    launch(query, key, key)
    assert tma_fake.record(0).map_addresses[2] not in (value.data_ptr(), 0)
    assert tma_fake.record(1).map_addresses[2] == key.data_ptr()


def test_a_plan_of_two_kernels_shares_one_set_of_parameters(launcher: Launcher, fake: FakeDriver) -> None:
    query = torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16)
    key = torch.zeros(2, 4, 1000, 64, dtype=torch.bfloat16)
    main, merge = Kernel(id="main", smem_bytes=4096), Kernel(id="merge", sha256="2" * 64, smem_bytes=0, threads=64)
    launches = [
        (launcher.kernel(main, cubin()), LaunchSpec((8 * 5, 1, 1), (), 1, 5, 256)),
        (launcher.kernel(merge, cubin()), LaunchSpec((8, 1, 1), (), 1, 5, 256)),
    ]
    facts = {"causal": False, "scale": 1.0, "mask_kind": 0, "dropout_p": 0.0}
    plan = launcher.plan(launches, facts, query, key, key, None)
    partial_o, partial_stats = torch.zeros(5, 2, 4, 1, 64), torch.zeros(5, 2, 4, 1, 2)
    plan(query, key, key, None, query.clone(), None, partial_o, partial_stats)

    first, second = fake.record(0), fake.record(1)
    assert (first.grid, second.grid) == ((40, 1, 1), (8, 1, 1))
    assert (first.config[3], second.config[3]) == (128, 64)
    assert first.kernel != second.kernel
    assert bytes(first.params) == bytes(second.params)
    p = first.params
    assert (p.splits, p.kv_per_split) == (5, 256)
    assert (p.partial_o, p.partial_stats) == (partial_o.data_ptr(), partial_stats.data_ptr())
    with pytest.raises(ValueError, match="partial_stats does not fit"):
        plan(query, key, key, None, query.clone(), None, partial_o, partial_stats[1:])


def test_struct_sizes_are_those_of_the_header(launcher: Launcher) -> None:
    facts = launcher.abi()
    assert (facts["attention"], facts["attention_tma"]) == (ATTENTION_BYTES, TMA_KERNEL.param_bytes)
