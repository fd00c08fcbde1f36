"""The launcher built from source and joined to a stand-in driver, so that launching is tested without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from launcher_fakes import ATTENTION_BYTES, FakeDriver, Launcher

from ffpa_attn.device import DeviceInfo
from ffpa_attn.launcher import CPU
from ffpa_build.launcher import build_launcher


@pytest.fixture(scope="session")
def launcher_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_launcher(tmp_path_factory.mktemp("launcher") / "_launcher.so")


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libfake_driver.so"
    source = Path(__file__).with_name("fake_driver.cc")
    subprocess.run(["g++", "-O1", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture
def fake(fake_library: Path) -> FakeDriver:
    driver = FakeDriver(str(fake_library))
    driver.reset(ATTENTION_BYTES)
    return driver


@pytest.fixture
def launcher(launcher_library: Path, fake: FakeDriver) -> Launcher:
    return Launcher(launcher_library, fake.library, device_type=CPU)


@pytest.fixture
def device() -> DeviceInfo:
    return DeviceInfo(index=0, name="stand-in", capability=(9, 0), smem_block_optin=232448, sm_count=132)
