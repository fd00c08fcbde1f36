"""Mistakes, damaged packs and driver failures become Python exceptions that name the kernel and the cause."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from launcher_fakes import ATTENTION_BYTES, FakeDriver, Kernel, Launcher, Problem, cubin

from ffpa_attn.device import DeviceInfo
from ffpa_attn.errors import DriverNotFoundError, LaunchError
from ffpa_attn.launch import needs_copy, prepare, run
from ffpa_attn.launcher import CUDA, MisalignedError

INVALID_IMAGE = 200
UNKNOWN = 9999


def inputs(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.zeros(1, 2, 32, 64, dtype=dtype) for _ in range(3))  # type: ignore[return-value]


def call(launcher: Launcher, device: DeviceInfo, kernel: Kernel | None = None, image: Any = None) -> Any:
    query, key, value = inputs()
    image = cubin() if image is None else image
    problem = Problem.of(query, key)
    return run(kernel or Kernel(), image, problem, query, key, value, launcher=launcher, device=device)


@pytest.mark.parametrize(
    "step",
    ["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetParamInfo", "cuKernelSetAttribute", "cuLaunchKernelEx"],
)
def test_a_failing_driver_call_names_kernel_call_and_error(
    step: str, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    fake.fail(step, INVALID_IMAGE)
    with pytest.raises(LaunchError) as caught:
        call(launcher, device)
    for part in (Kernel().id, step, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"):
        assert part in str(caught.value)


def test_a_failing_load_is_tried_again(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    fake.fail("cuLibraryLoadData", INVALID_IMAGE)
    with pytest.raises(LaunchError):
        call(launcher, device)
    fake.fail("", 0)
    call(launcher, device)
    assert fake.launches() == 1


def test_an_error_without_a_name_is_told_by_number(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    fake.fail("cuLaunchKernelEx", UNKNOWN)
    with pytest.raises(LaunchError, match="CUDA error 9999"):
        call(launcher, device)


def test_a_context_pushed_for_a_failing_launch_is_popped(
    launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    fake.fail("cuLaunchKernelEx", INVALID_IMAGE)
    with pytest.raises(LaunchError):
        call(launcher, device)
    assert fake.context_depth() == 0


@pytest.mark.parametrize(
    ("image", "defect"),
    [
        (b"", "shorter than an ELF header"),
        (b"not a cubin" * 10, "not a 64-bit ELF"),
        (cubin()[:18] + struct.pack("<H", 62) + cubin()[20:], "not code for an NVIDIA GPU"),
        (cubin()[:-1], "ends before its section headers"),
        (cubin()[:48] + struct.pack("<Q", 2**63)[:4] + cubin()[52:60] + b"\0\0" + cubin()[62:], "no sections"),
        (
            cubin()[:32] + struct.pack("<Q", 2**63) + cubin()[40:56] + struct.pack("<H", 3) + cubin()[58:],
            "unknown size",
        ),
        (cubin()[:-32] + struct.pack("<Q", 2**40) + cubin()[-24:], "ends inside a section"),
        (cubin()[:40] + struct.pack("<Q", 2**64 - 8) + cubin()[48:], "ends before its section headers"),
    ],
)
def test_a_damaged_cubin_never_reaches_the_driver(
    image: bytes, defect: str, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    with pytest.raises(LaunchError, match=f"{Kernel().id}.*{defect}"):
        call(launcher, device, image=image)
    assert fake.library_loads() == 0


def test_a_kernel_with_another_parameter_size_is_refused(
    launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    fake.parameters(ATTENTION_BYTES + 8, 1)
    with pytest.raises(LaunchError, match=f"{ATTENTION_BYTES + 8} bytes.*manifest says {ATTENTION_BYTES}"):
        call(launcher, device)


def test_a_manifest_for_other_structs_is_refused(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    fake.parameters(64, 1)
    with pytest.raises(LaunchError, match=f"64 bytes, this runtime fills {ATTENTION_BYTES}"):
        call(launcher, device, kernel=Kernel().with_(param_bytes=64))


def test_a_kernel_is_loaded_once_by_many_threads(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    barrier = threading.Barrier(8)

    def work(_: int) -> None:
        barrier.wait()
        call(launcher, device)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert (fake.library_loads(), fake.launches()) == (1, 8)


def test_the_cubin_is_read_only_for_the_first_load(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    reads = []

    def image() -> bytes:
        reads.append(1)
        return cubin()

    call(launcher, device, image=image)
    call(launcher, device, image=image)
    assert (len(reads), fake.library_loads()) == (1, 1)
    call(launcher, device, kernel=Kernel().with_(sha256="1" * 64), image=image)
    assert (len(reads), fake.library_loads()) == (2, 2)


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape and strides, two bytes off a 16-byte boundary."""
    return torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)


def test_a_misaligned_tensor_is_copied_for_that_call(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    query, key, value = inputs()
    launch = prepare(
        Kernel(), cubin(), Problem.of(query, key), query, key, value, None, True, launcher=launcher, device=device
    )
    off = shifted(key)
    assert needs_copy(off) == "its data is not aligned to 16 bytes"
    launch(query, off, value)
    launch(query, key, value)
    first, second = fake.record(0).params, fake.record(1).params
    assert (first.q, first.v) == (query.data_ptr(), value.data_ptr())
    assert first.k not in (off.data_ptr(), key.data_ptr()) and first.k % 16 == 0
    assert second.k == key.data_ptr()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: torch.zeros(1, 2, 64, 32, dtype=t.dtype).transpose(2, 3), "last dimension has stride 32"),
        (lambda t: torch.zeros(1, 2, 32, 68, dtype=t.dtype)[..., :64], "row stride of 136 bytes"),
        (shifted, "not aligned"),
    ],
)
def test_an_unreadable_layout_is_copied_and_explained(
    spoil: Any, reason: str, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    query, key, value = inputs()
    value = spoil(value)
    assert reason in (needs_copy(value) or "")
    assert needs_copy(query) is None
    run(Kernel(), cubin(), Problem.of(query, key), query, key, value, launcher=launcher, device=device)
    p = fake.record().params
    assert p.v != value.data_ptr() and p.v_stride.astuple() == (0, 32 * 64, 64)
    assert p.k == key.data_ptr()


def plan_of(launcher: Launcher, device: DeviceInfo, **options: Any) -> Any:
    from ffpa_attn import recipes

    query, key, value = inputs()
    spec = recipes.launch_spec(Kernel(), Problem.of(query, key), device)
    facts = {"causal": False, "scale": 1.0, "mask_kind": 0, "dropout_p": 0.0, **options}
    return launcher.plan([(launcher.kernel(Kernel(), cubin()), spec)], facts, query, key, value, None)


@pytest.mark.parametrize("position,name", list(enumerate(["query", "key", "value", "attn_mask", "out", "lse"])))
def test_a_plan_turns_other_tensors_away(
    position: int, name: str, launcher: Launcher, fake: FakeDriver, device: DeviceInfo
) -> None:
    plan = plan_of(launcher, device)
    query, key, value = inputs()
    arguments = [query, key, value, None, query.clone(), torch.zeros(1, 2, 32)]
    plan(*arguments)
    for wrong in (torch.zeros(1, 2, 33, 64, dtype=torch.bfloat16), torch.zeros(1, 2, 32, 64, dtype=torch.float16)):
        changed = list(arguments)
        changed[position] = wrong
        if position < 4:
            assert plan(*changed) is False
        else:
            with pytest.raises(ValueError, match="does not fit the plan"):
                plan(*changed)
    with pytest.raises(ValueError, match="takes 6 arguments"):
        plan(*arguments[:-1])
    with pytest.raises(TypeError, match="query must be a tensor"):
        plan(1, *arguments[1:])
    assert fake.launches() == 1


def test_strides_other_than_the_plans_are_turned_away(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    plan = plan_of(launcher, device)
    query, key, value = inputs()
    nhd = torch.zeros(1, 32, 2, 64, dtype=torch.bfloat16).transpose(1, 2)
    assert plan(query, nhd, value, None, query.clone(), None) is False
    assert fake.launches() == 0
    with pytest.raises(MisalignedError, match="query's data"):
        plan(shifted(query), key, value, None, query.clone(), None)


def test_tensors_on_another_kind_of_device_are_turned_away(
    launcher_library: Path, fake: FakeDriver, device: DeviceInfo
) -> None:
    with pytest.raises(ValueError, match="kind of device"):
        call(Launcher(launcher_library, fake.library, device_type=CUDA), device)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mask_kind": 4}, "mask_kind"), ({"mask_kind": 1}, "mask"), ({"dropout_p": 1.0}, "dropout_p"),
     ({"scale": "big"}, "scale"), ({"causal": None}, "causal")],
)  # fmt: skip
def test_a_plan_checks_its_facts(options: dict[str, Any], message: str, launcher: Launcher, device: DeviceInfo) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of(launcher, device, **options)


def test_dropout_takes_numbers_or_device_scalars(launcher: Launcher, fake: FakeDriver, device: DeviceInfo) -> None:
    query, key, value = inputs()
    launch = prepare(
        Kernel(),
        cubin(),
        Problem.of(query, key, dropout_p=0.25),
        query,
        key,
        value,
        None,
        False,
        launcher=launcher,
        device=device,
    )
    launch(query, key, value, philox=(2**64 - 5, 8))
    p = fake.record(0).params
    assert (p.seed_value, p.offset_value, p.philox_seed, p.philox_offset) == (2**64 - 5, 8 // 4, None, None)
    assert p.drop_p == 0.25 and p.inv_keep == pytest.approx(4 / 3)
    seed, offset = torch.tensor([3]), torch.tensor([4])
    launch(query, key, value, philox=(seed, offset, 12))
    p = fake.record(1).params
    assert (p.philox_seed, p.philox_offset, p.offset_value) == (seed.data_ptr(), offset.data_ptr(), 12)
    with pytest.raises(ValueError, match="takes 9 arguments"):
        launch(query, key, value)
    with pytest.raises(ValueError, match="both"):
        launch(query, key, value, philox=(seed, 4, 0))
    with pytest.raises(ValueError, match="philox offset must be a multiple of 4.*got 6"):
        launch(query, key, value, philox=(1, 6))


def test_a_missing_launcher_or_driver_says_what_to_install(tmp_path: Path, launcher_library: Path) -> None:
    with pytest.raises(LaunchError, match="reinstall ffpa-core"):
        Launcher(tmp_path / "_launcher.so")
    from ffpa_attn import driver

    with pytest.raises(DriverNotFoundError, match="no NVIDIA driver.*libnothing.so"):
        driver.open_library(["libnothing.so"])
