"""When the gpu tests may skip a call: only where the packs leave out all of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu.selection import left_out, missing, selection_of
from runtime_fakes import kernel, problem

from ffpa_attn import CUDABackend
from ffpa_attn.manifest import KernelInfo
from ffpa_build.matrix import expand
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec

SPEC = load_spec(Path(__file__).resolve().parents[2])


def installed(preset: str, **options: str) -> dict[str, list[KernelInfo]]:
    """The rows of each pack that a build of the preset would have."""
    rows: dict[str, list[KernelInfo]] = {}
    for variant in expand(SPEC, Selection.make(SPEC, preset, **options)).variants:
        row = kernel(
            variant.arch.name if variant.arch.name != "sm_100f" else "sm_90a",
            impl=variant.impl.id,
            ext=variant.impl.ext,
            problems=variant.impl.problems,
            rank=variant.rank,
            dtype=variant.dtype,
            acc=variant.acc,
            head_dim=variant.head_dim,
            stages=variant.stages,
            features=variant.features,
            suffix=f"-for_{variant.target.name}" if variant.emulated else "",
        )
        assert row.id == variant.id
        rows.setdefault(variant.pack, []).append(row)
    return rows


CASES = [
    ("dev", {}),
    ("demo", {}),
    ("emulated", {}),
    ("default", {"archs": "sm_80,sm_89,sm_90a,sm_120f"}),
    ("release", {"archs": "sm_90a", "ext": "hopper"}),
    ("all", {"archs": "sm_90a", "stages": "2,4", "acc": "all"}),
]


@pytest.mark.parametrize(("preset", "options"), CASES)
def test_a_whole_pack_misses_nothing_and_one_without_a_kernel_misses_it(preset: str, options: dict[str, str]) -> None:
    for pack, rows in installed(preset, **options).items():
        assert missing(SPEC, pack, rows) == []
        for lost in rows[:: max(1, len(rows) // 20)]:
            rest = [row for row in rows if row is not lost]
            # A pack that has nothing else of the kernel's kind may have been built without that kind.
            if rest and selection_of(SPEC, pack, rest) == selection_of(SPEC, pack, rows):
                assert missing(SPEC, pack, rest) == [lost.id]


def test_a_lost_kernel_of_the_dev_preset_is_never_hidden() -> None:
    (rows,) = installed("dev").values()
    for lost in rows:
        rest = [row for row in rows if row is not lost]
        assert missing(SPEC, "core", rest) == [lost.id]


def test_a_call_is_skipped_only_for_what_the_packs_lack_as_a_whole() -> None:
    (rows,) = installed("dev").values()
    plain = problem(head_dim=512)
    assert left_out(plain, CUDABackend(), rows) is None
    assert left_out(problem(mask_kind="additive_f32", dropout_p=0.5), CUDABackend(), rows) is None
    assert left_out(plain, CUDABackend(kernel=rows[0].id), rows) is None
    for call, backend, lacking in (
        (problem(dtype="fp16"), CUDABackend(acc="f16"), "with acc f16"),
        (plain, CUDABackend(enable_fp8=True), "of the implementation cute_tma_fp8"),
        (plain, CUDABackend(enable_cute=True, enable_tma=False), "of the implementation cute"),
        (plain, CUDABackend(kernel="native.split_d-sm_90a-bf16-d8-s3"), "no kernel native"),
    ):
        assert lacking in str(left_out(call, backend, rows))
    demo = installed("demo")["core"]
    assert "features ['bias']" in str(left_out(problem(mask_kind="boolean"), CUDABackend(), demo))
    assert "head dim 1024" in str(left_out(problem(head_dim=1024), CUDABackend(), demo))
