"""Grids, device facts and the driver library, without the native part."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launcher_fakes import TMA_KERNEL, FakeDriver, Kernel, Problem

from ffpa_attn import driver
from ffpa_attn.device import DeviceInfo
from ffpa_attn.errors import DriverNotFoundError
from ffpa_attn.recipes import RECIPES, launch_spec

DEVICE = DeviceInfo(0, "stand-in", (9, 0), 232448, 132)


@given(
    sizes=st.tuples(*[st.integers(1, 70000)] * 3),
    tile_m=st.sampled_from([16, 64, 128]),
    cluster=st.sampled_from([1, 2, 4]),
)
def test_every_query_row_has_a_block_or_the_problem_is_refused(
    sizes: tuple[int, int, int], tile_m: int, cluster: int
) -> None:
    batch, heads, q_len = sizes
    kernel = Kernel().with_(tile_m=tile_m, cluster=cluster)
    problem = Problem(batch, heads, heads, q_len, 512, 64)
    tiles = math.ceil(q_len / tile_m / cluster) * cluster
    if tiles * heads * batch > 2**31 - 1:
        with pytest.raises(ValueError, match=f"heads {heads} x q_len {q_len} needs"):
            launch_spec(kernel, problem, DEVICE)
        return
    spec = launch_spec(kernel, problem, DEVICE)
    assert spec.grid == (tiles * heads * batch, 1, 1)
    assert spec.q_tiles == tiles and tiles * tile_m >= q_len


@pytest.mark.parametrize(
    ("sm_count", "cluster", "blocks"),
    [(132, 1, 132), (133, 2, 132), (1, 4, 4)],
)
def test_a_persistent_grid_fills_the_device(sm_count: int, cluster: int, blocks: int) -> None:
    device = DeviceInfo(0, "stand-in", (9, 0), 232448, sm_count)
    kernel = Kernel().with_(persistent=True, cluster=cluster)
    assert launch_spec(kernel, Problem(8, 64, 64, 8192, 8192, 64), device).grid == (blocks, 1, 1)
    small = Problem(1, 1, 1, 64, 64, 64)
    assert launch_spec(kernel, small, device).grid == (cluster, 1, 1)


def test_boxes_come_from_the_manifest() -> None:
    spec = launch_spec(TMA_KERNEL, Problem(1, 1, 1, 64, 64, 64), DEVICE)
    assert [(box.cols, box.rows, box.swizzle) for box in spec.boxes] == [(64, 128, 128), (64, 80, 128), (64, 80, 128)]
    assert launch_spec(Kernel(), Problem(1, 1, 1, 64, 64, 64), DEVICE).boxes == ()


@pytest.mark.parametrize("changes", [{"box_cols": 0}, {"box_kv_rows": 257}])
def test_an_impossible_box_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must be in 1..256"):
        launch_spec(TMA_KERNEL.with_(**changes), Problem(1, 1, 1, 64, 64, 64), DEVICE)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'other' is not one of " + ", ".join(sorted(RECIPES))):
        launch_spec(Kernel().with_(recipe="other"), Problem(1, 1, 1, 64, 64, 64), DEVICE)


def test_device_facts_come_from_the_properties() -> None:
    properties = SimpleNamespace(
        name="card", major=8, minor=9, shared_memory_per_block_optin=101376, multi_processor_count=58
    )
    assert DeviceInfo.from_properties(1, properties) == DeviceInfo(1, "card", (8, 9), 101376, 58)


def test_importing_device_facts_needs_no_torch() -> None:
    code = "import sys, ffpa_attn.device, ffpa_attn.driver, ffpa_attn.recipes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_library_names_by_platform() -> None:
    assert driver.library_names("win32") == ("nvcuda.dll",)
    assert driver.library_names("linux")[0] == "libcuda.so.1"


def test_an_old_driver_is_told_by_version(fake: FakeDriver) -> None:
    assert driver.version(fake.library) == (12, 9)
    with pytest.raises(DriverNotFoundError, match="serves CUDA 12.9 and lacks cuNewerThanThis; ffpa needs CUDA 12.0"):
        driver.entry_points(fake.library, {"cuNewerThanThis": True})


def test_entry_points_are_the_addresses_of_the_symbols(fake: FakeDriver) -> None:
    points = driver.entry_points(fake.library, {"cuDeviceGet": True, "cuNewerThanThis": False})
    assert points == {"cuDeviceGet": ctypes.cast(fake.library.cuDeviceGet, ctypes.c_void_p).value}
