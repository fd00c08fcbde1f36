"""What a launch hands to the driver: parameters, grid, stream, context."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launcher_fakes import TMA_KERNEL, FakeDriver, Kernel, Launcher, Problem, cubin

from ffpa_attn.device import DeviceInfo
from ffpa_attn.launch import output_strides, prepare, run

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MASK_DTYPES = {"boolean": torch.bool, "additive": torch.bfloat16, "additive_f32": torch.float32}


def tensors(batch: int = 2, heads: int = 4, kv_heads: int = 2, q_len: int = 100, kv_len: int = 70, head_dim: int = 64):
    query = torch.zeros(batch, heads, q_len, head_dim, dtype=torch.bfloat16)
    key = torch.zeros(batch, kv_heads, kv_len, head_dim, dtype=torch.bfloat16)
    return query, key, key.clone()


def expected_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(0 if n == 1 else s for n, s in zip(tensor.shape[:3], tensor.stride()[:3], strict=True))


def laid_out(data: st.DataObject, batch: int, heads: int, rows: int, columns: int) -> torch.Tensor:
    """A [B, H, N, D] tensor in one of the layouts that callers have."""
    layout = data.draw(st.sampled_from(["bhnd", "nhd", "fused", "padded rows", "expanded heads", "sliced"]))
    new = partial(torch.zeros, dtype=torch.bfloat16)
    if layout == "bhnd":
        return new(batch, heads, rows, columns)
    if layout == "nhd":
        return new(batch, rows, heads, columns).transpose(1, 2)
    if layout == "fused":
        return new(batch, rows, 3, heads, columns)[:, :, 1].transpose(1, 2)
    if layout == "padded rows":
        return new(batch, heads, rows, columns + 8)[..., :columns]
    if layout == "expanded heads":
        return new(batch, 1, rows, columns).expand(-1, heads, -1, -1)
    return new(batch + 1, heads, rows * 2, columns)[1:, :, ::2]


@SETTINGS
@given(data=st.data())
def test_parameters_are_those_of_the_tensors(
    data: st.DataObject, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    batch, kv_heads, group = (data.draw(st.integers(1, 3)) for _ in range(3))
    q_len, kv_len = (data.draw(st.integers(1, 90)) for _ in range(2))
    columns = 8 * data.draw(st.integers(1, 10))
    query = laid_out(data, batch, kv_heads * group, q_len, columns)
    key, value = (laid_out(data, batch, kv_heads, kv_len, columns) for _ in range(2))
    mask_kind = data.draw(st.sampled_from(["none", *MASK_DTYPES]))
    attn_mask = None
    if mask_kind != "none":
        full = (batch, kv_heads * group, q_len, kv_len)
        shape = [data.draw(st.sampled_from([1, size])) for size in full]
        attn_mask = torch.zeros(shape, dtype=MASK_DTYPES[mask_kind]).expand(full)
    causal, scale = data.draw(st.booleans()), data.draw(st.floats(0.01, 2.0))
    problem = Problem.of(query, key, mask_kind=mask_kind, is_causal=causal, scale=scale)

    fake.reset()
    out, lse = run(
        Kernel(), cubin(), problem, query, key, value, attn_mask, want_lse=True, launcher=launcher, device=device
    )

    assert fake.launches() == 1
    record = fake.record()
    p = record.params
    assert (p.q, p.k, p.v, p.o) == (query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr())
    assert lse is not None and p.lse == lse.data_ptr()
    for got, tensor in ((p.q_stride, query), (p.k_stride, key), (p.v_stride, value), (p.o_stride, out)):
        assert got.astuple() == expected_strides(tensor)
    if attn_mask is None:
        assert p.mask is None and p.mask_kind == 0
    else:
        assert p.mask == attn_mask.data_ptr()
        assert p.mask_stride.astuple() == expected_strides(attn_mask)
        assert p.mask_col_stride == (0 if kv_len == 1 else attn_mask.stride(3))
        assert p.mask_kind == 1 + list(MASK_DTYPES).index(mask_kind)
    assert (p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len) == (batch, kv_heads * group, kv_heads, q_len, kv_len)
    assert (p.head_dim, p.group, p.causal, p.causal_offset) == (columns, group, causal, kv_len - q_len)
    assert p.scale == pytest.approx(scale, rel=1e-6) and p.scale_log2 == pytest.approx(scale / math.log(2), rel=1e-6)
    assert (p.q_tiles, p.splits, p.kv_per_split) == (-(-q_len // 64), 1, -(-kv_len // 64) * 64)
    assert (p.drop_p, p.inv_keep) == (0.0, 1.0)
    assert record.grid == (-(-q_len // 64) * kv_heads * group * batch, 1, 1)
    assert tuple(record.config[3:7]) == (128, 1, 1, 98304)
    assert record.attribute_count == 0
    assert out.shape == query.shape and out.stride() == output_strides(query)


def test_offsets_past_32_bits_are_kept(
    tmp_path: Path, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    # A sparse file stands in for 16 GiB of keys: nothing reads the data.
    elements = 2**33
    storage = torch.from_file(str(tmp_path / "keys"), shared=True, size=elements, dtype=torch.bfloat16)
    query, _, value = tensors(batch=2, kv_len=70)
    key = storage.as_strided((2, 2, 70, 64), (2**32 + 64, 2**31 + 8, 2**24 + 8, 1))
    run(Kernel(), cubin(), Problem.of(query, key), query, key, value, launcher=launcher, device=device)
    assert fake.record().params.k_stride.astuple() == (2**32 + 64, 2**31 + 8, 2**24 + 8)


def test_a_call_replaces_only_pointers(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    query, key, value = tensors()
    launch = prepare(
        Kernel(), cubin(), Problem.of(query, key), query, key, value, None, False, launcher=launcher, device=device
    )
    launch(query, key, value)
    other = [tensor.clone() for tensor in (query, key, value)]
    out = launch(*other)
    first, second = fake.record(0).params, fake.record(1).params
    assert [second.q, second.k, second.v, second.o] == [t.data_ptr() for t in (*other, out)]
    assert second.lse is None
    for name in ("q", "k", "v", "o"):
        setattr(second, name, getattr(first, name))
    assert bytes(first) == bytes(second)


WGMMA_KERNEL = replace(TMA_KERNEL, id="hopper.bm128-sm_90a-bf16-d64-s3-bias", recipe="wgmma")


def test_a_mask_off_its_alignment_does_not_fit_the_plan(
    launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = tensors(kv_len=80)
    full = (*query.shape[:3], 80)
    storage = torch.zeros(128, 96, dtype=torch.bfloat16)
    mask = storage[: full[2], :80].expand(full)
    problem = Problem.of(query, key, mask_kind="additive")
    fake.reset(WGMMA_KERNEL.param_bytes)
    launch = prepare(WGMMA_KERNEL, cubin(), problem, query, key, value, mask, False, launcher=launcher, device=device)
    assert launch(query, key, value, mask) is not None and fake.launches() == 1
    for first in (1, 4):  # columns further on: the same strides, another address
        assert launch(query, key, value, storage[: full[2], first : first + 80].expand(full)) is None
    assert fake.launches() == 1
    assert launch(query, key, value, storage[: full[2], 8:88].expand(full)) is not None


@pytest.mark.parametrize("mask", ["transposed", "odd rows"])
def test_a_mask_that_the_kernel_cannot_read_is_refused(
    mask: str, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = tensors(kv_len=80)
    full = (*query.shape[:3], 80)
    rows = (
        torch.zeros(80, full[2]).bfloat16().T if mask == "transposed" else torch.zeros(full[2], 81).bfloat16()[:, :80]
    )
    fake.reset(WGMMA_KERNEL.param_bytes)
    with pytest.raises(ValueError, match="dense columns and rows that start on 16 bytes"):
        prepare(
            WGMMA_KERNEL,
            cubin(),
            Problem.of(query, key, mask_kind="additive"),
            query,
            key,
            value,
            rows.expand(full),
            False,
            launcher=launcher,
            device=device,
        )


@pytest.mark.parametrize("layout", ["bhnd", "nhd", "fused"])
def test_output_keeps_the_memory_order_of_the_query(
    layout: str, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = tensors()
    if layout == "nhd":
        query = torch.zeros(2, 100, 4, 64, dtype=torch.bfloat16).transpose(1, 2)
    if layout == "fused":
        query = torch.zeros(2, 100, 3 * 4 * 64, dtype=torch.bfloat16)[..., :256].unflatten(2, (4, 64)).transpose(1, 2)
    out, _ = run(Kernel(), cubin(), Problem.of(query, key), query, key, value, launcher=launcher, device=device)
    assert (out if layout == "bhnd" else out.transpose(1, 2)).is_contiguous()
    assert fake.record().params.o_stride.astuple() == out.stride()[:3]
    out.untyped_storage().resize_(0)  # the storage is torch's own


def test_inputs_that_record_gradients_give_a_plain_result(
    launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = (torch.nn.Parameter(tensor) for tensor in tensors())
    out, _ = run(Kernel(), cubin(), Problem.of(query, key), query, key, value, launcher=launcher, device=device)
    assert type(out) is torch.Tensor and not out.requires_grad
    assert fake.record().params.q == query.data_ptr()


def test_launches_on_the_current_stream(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    query, key, value = tensors()
    launch = prepare(
        Kernel(), cubin(), Problem.of(query, key), query, key, value, None, False, launcher=launcher, device=device
    )
    previous = tvm_ffi.core._env_set_current_stream(1, 0, 0x5EED)
    try:
        launch(query, key, value)
    finally:
        tvm_ffi.core._env_set_current_stream(1, 0, previous)
    assert fake.record().stream == 0x5EED


@pytest.mark.parametrize(
    ("current", "during"),
    [
        pytest.param(None, 100, id="no context"),
        pytest.param(100, 100, id="the primary context"),
        pytest.param(101, 100, id="another device"),
        pytest.param(1000, 1000, id="another context of the device"),
    ],
)
def test_launches_in_a_context_of_the_tensors_device(
    current: int | None, during: int, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = tensors()
    launch = prepare(
        Kernel(), cubin(), Problem.of(query, key), query, key, value, None, False, launcher=launcher, device=device
    )
    if current is not None:
        fake.enter_context(current)
    depth = fake.context_depth()
    launch(query, key, value)
    assert fake.record().context == during
    assert fake.context_depth() == depth


def test_cluster_and_grid_of_a_persistent_kernel(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    query, key, value = tensors(q_len=70)
    kernel = Kernel().with_(cluster=2, persistent=True)
    problem = Problem.of(query, key)
    run(kernel, cubin(), problem, query, key, value, launcher=launcher, device=device)
    record = fake.record()
    assert record.grid == (2 * 4 * 2, 1, 1)
    assert (record.attribute_count, record.attribute_id, tuple(record.cluster)) == (1, 4, (2, 1, 1))
    assert record.params.q_tiles == 2


def test_shared_memory_and_large_clusters_are_allowed_once_a_device(
    launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = tensors(q_len=1024)
    kernel = Kernel().with_(cluster=16)
    for _ in range(3):
        run(kernel, cubin(), Problem.of(query, key), query, key, value, launcher=launcher, device=device)
    assert fake.attribute(8) == 98304 and fake.attribute(14) == 1
    assert fake.attribute_calls() == 2


def test_many_threads_share_one_plan(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    query, key, value = tensors()
    launch = prepare(
        Kernel(), cubin(), Problem.of(query, key), query, key, value, None, True, launcher=launcher, device=device
    )

    def work(_: int) -> list[torch.Tensor]:
        return [launch(query, key, value)[0] for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        results = [out for part in pool.map(work, range(4)) for out in part]
    assert fake.launches() == 800
    assert len({out.data_ptr() for out in results}) == 800
