"""The hopper kernels as compiled: what the compiler says of them, and what their manifests tell the launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffpa_build.api import Selection, build_report, load_spec
from ffpa_build.build import Built

ROOT = Path(__file__).resolve().parents[2]
SMEM_BLOCK = 232448
Key = tuple[str, int, bool]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Built]:
    """Short, crowded and paired kernels, without and with a mask, by impl, head dim and whether they have one."""
    spec = load_spec(ROOT)
    selection = Selection.make(
        spec, archs="sm_90a", ext="hopper", head_dims="64,128,768,1024", dtypes="bf16", stages="3", features="bias"
    )
    report = build_report(selection, spec=spec, cache_dir=tmp_path_factory.mktemp("cache"), jobs=1, quiet=True)
    assert not report.failures, report.failures
    return {(b.variant.impl.name, b.variant.head_dim, "bias" in b.variant.features): b for b in report.built}


def test_wgmma_is_not_serialised_and_registers_suffice(kernels: dict[Key, Built]) -> None:
    """C7508 to C7520 say that setmaxnreg was ignored, or that the compiler waits after every wgmma."""
    for built in kernels.values():
        assert "(C75" not in built.entry.log, built.entry.log
        assert built.entry.facts.spill_bytes == 0 and built.entry.facts.stack_bytes == 0


def test_registers_and_shared_memory_fill_one_multiprocessor(kernels: dict[Key, Built]) -> None:
    for built in kernels.values():
        facts = built.entry.facts
        assert facts.registers * facts.threads <= 65536
        assert facts.smem_bytes + facts.static_smem_bytes <= SMEM_BLOCK


def test_boxes_cover_the_tile_of_a_cluster(kernels: dict[Key, Built]) -> None:
    for built in kernels.values():
        facts = built.entry.facts
        assert facts.box_q_rows == facts.tile_m * facts.cluster
        assert facts.box_cols * 2 == facts.swizzle == 128
        assert facts.tile_n % facts.box_kv_rows == 0


def test_the_widest_kernel_needs_a_pair_and_blocks_of_the_narrow_ones_stay(kernels: dict[Key, Built]) -> None:
    stay = {(f"bm{rows}", 64, False) for rows in (128, 192, 256)} | {("bm192", 64, True), ("bm128", 128, False)}
    gone = {("bm128", 128, True), *(("seesaw", d, mask) for d in (768, 1024) for mask in (False, True))}
    assert set(kernels) == stay | gone
    for key, built in kernels.items():
        assert built.entry.facts.cluster == (2 if key[1] == 1024 else 1)
        assert built.entry.facts.persistent == (key in stay)
