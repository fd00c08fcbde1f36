"""The launcher on a real driver: probe kernels give Q + K, so that what reached the device can be compared."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from launcher_fakes import ATTENTION_BYTES, TMA_KERNEL, Kernel, Launcher, Problem

from ffpa_attn.errors import LaunchError
from ffpa_attn.launch import prepare, run
from ffpa_build.launcher import CSRC

pytestmark = pytest.mark.gpu

POINTERS = Kernel(id="probe.pointers", entry="probe_pointers", smem_bytes=0)
MAPS = TMA_KERNEL.with_(
    id="probe.maps", entry="probe_maps", smem_bytes=2 * 64 * 64 * 2 + 8, box_q_rows=64, box_kv_rows=64, swizzle=0
)
BOTH = pytest.mark.parametrize("kernel", [POINTERS, MAPS], ids=["pointers", "maps"])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc, which compiles the probe kernels, is not on PATH")
    major, minor = torch.cuda.get_device_capability()
    if major < 9:
        pytest.skip("tensor maps need compute capability 9.0")
    path = tmp_path_factory.mktemp("probe") / "probe.cubin"
    source = Path(__file__).with_name("probe.cu")
    subprocess.run([nvcc, f"-arch=sm_{major}{minor}", "-cubin", f"-I{CSRC}", str(source), "-o", str(path)], check=True)
    return path.read_bytes()


@pytest.fixture(scope="module")
def real(launcher_library: Path) -> Launcher:
    return Launcher(launcher_library)


def integers(*shape: int, device: str = "cuda") -> torch.Tensor:
    return torch.randint(0, 100, shape, device=device).to(torch.bfloat16)


def problem_of(query: torch.Tensor, key: torch.Tensor) -> Problem:
    return Problem.of(query, key, device_index=query.device.index)


def layouts(name: str, heads: int, rows: int, columns: int) -> torch.Tensor:
    if name == "fused":
        return integers(2, rows, 3, heads, columns)[:, :, 1].transpose(1, 2)
    if name == "expanded":
        return integers(2, 1, rows, columns).expand(-1, heads, -1, -1)
    return integers(2, heads, rows, columns)


@BOTH
@pytest.mark.parametrize("key_layout", ["packed", "fused", "expanded"])
@pytest.mark.parametrize("columns", [8, 64, 72, 512])
def test_strides_and_maps_reach_the_right_elements(
    kernel: Kernel, key_layout: str, columns: int, real: Launcher, image: bytes
) -> None:
    query = layouts("fused", 4, 130, columns)
    key = layouts(key_layout, 2, 130, columns)
    out, lse = run(kernel, image, problem_of(query, key), query, key, key, want_lse=True, launcher=real)
    assert torch.equal(out, query + key.repeat_interleave(2, dim=1))
    assert lse is not None and torch.equal(lse, torch.arange(130.0, device="cuda").expand(2, 4, -1))


@BOTH
def test_misaligned_inputs(kernel: Kernel, real: Launcher, image: bytes) -> None:
    query = integers(2, 4, 100, 64)
    key = integers(query.numel() + 1)[1:].view(query.shape)
    out, _ = run(kernel, image, problem_of(query, key), query, key, key, launcher=real)
    assert torch.equal(out, query + key)


@BOTH
def test_runs_on_the_current_stream(kernel: Kernel, real: Launcher, image: bytes) -> None:
    query, key = integers(1, 2, 64, 64), integers(1, 2, 64, 64)
    launch = prepare(kernel, image, problem_of(query, key), query, key, key, None, False, launcher=real)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        query.fill_(1)
        out = launch(query, key, key)
    side.synchronize()
    assert torch.equal(out, query + key)


@BOTH
def test_a_graph_replay_sees_new_inputs(kernel: Kernel, real: Launcher, image: bytes) -> None:
    query, key = integers(1, 2, 64, 64), integers(1, 2, 64, 64)
    launch = prepare(kernel, image, problem_of(query, key), query, key, key, None, False, launcher=real)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch(query, key, key)
    query.copy_(integers(1, 2, 64, 64))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, query + key)


def test_a_first_load_inside_a_capture(launcher_library: Path, image: bytes) -> None:
    query, key = integers(1, 2, 64, 64), integers(1, 2, 64, 64)
    fresh = Launcher(launcher_library)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = run(POINTERS, image, problem_of(query, key), query, key, key, launcher=fresh)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, query + key)


def in_threads(work: Callable[[int], None], count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


@BOTH
def test_threads_share_a_card(kernel: Kernel, real: Launcher, image: bytes) -> None:
    def work(index: int) -> None:
        for _ in range(50):
            query, key = integers(1, 2, 64, 64), integers(1, 2, 64, 64)
            out, _ = run(kernel, image, problem_of(query, key), query, key, key, launcher=real)
            assert torch.equal(out, query + key)

    in_threads(work, 4)


@BOTH
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_tensors_device_is_used_without_set_device(kernel: Kernel, real: Launcher, image: bytes) -> None:
    def work(index: int) -> None:
        device = f"cuda:{1 - index}"
        query, key = integers(1, 2, 64, 64, device=device), integers(1, 2, 64, 64, device=device)
        out, _ = run(kernel, image, problem_of(query, key), query, key, key, launcher=real)
        assert torch.equal(out, query + key)

    in_threads(work, 2)
    assert torch.cuda.current_device() == 0


def test_a_foreign_file_is_refused_by_name(real: Launcher, launcher_library: Path) -> None:
    query = integers(1, 2, 64, 64)
    foreign = POINTERS.with_(id="probe.foreign", sha256="f" * 64)
    with pytest.raises(LaunchError, match="probe.foreign: the cubin is damaged: it is not code for an NVIDIA GPU"):
        run(foreign, launcher_library.read_bytes(), problem_of(query, query), query, query, query, launcher=real)


def test_the_drivers_parameter_size_is_compared(real: Launcher, image: bytes) -> None:
    query = integers(1, 2, 64, 64)
    wrong = MAPS.with_(id="probe.wrong", entry="probe_pointers", sha256="e" * 64)
    with pytest.raises(LaunchError, match=f"its parameter has {ATTENTION_BYTES} bytes"):
        run(wrong, image, problem_of(query, query), query, query, query, launcher=real)
