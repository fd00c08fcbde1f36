"""A call without a kernel is told the flag that brings it, as an option and as a variable."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_fakes import H200, RTX5090, kernel, memory_packs, problem

from ffpa_attn import remedy
from ffpa_attn.backends import CUDABackend
from ffpa_attn.packs import PackSet
from ffpa_attn.routing import FallbackRoute, route

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What a source build without flags holds for one head dim.
BUILT = memory_packs(*(kernel(features=features) for features in [(), ("bias",), ("dropout",), ("bias", "dropout")]))


def text(packs: PackSet = BUILT, device=H200, backend: CUDABackend | None = None, **changes: object) -> str:
    taken = route(problem(**changes), device, backend or CUDABackend(), packs)
    assert isinstance(taken, FallbackRoute) and taken.reason.code == "no_kernel"
    return taken.reason.text


@pytest.mark.parametrize(
    ("changes", "backend", "option", "variable"),
    [
        ({"dtype": "fp16"}, {}, "--dtype bf16,fp16", "ENABLE_FFPA_CUDA_INPUT_FP16=1"),
        ({"dtype": "fp16"}, {"acc": "f16"}, "--acc f32,f16", "ENABLE_FFPA_F16_ACC=1"),
        (
            {"dtype": "fp16", "mask_kind": "additive_f32"},
            {},
            "--features bias,dropout,bias32",
            "ENABLE_FFPA_CUDA_MASK_FP32=1",
        ),
        ({"head_dim": 768}, {}, "--headdim default,768", "FFPA_DEV_HEADDIMS=default,768"),
        ({"head_dim": 448}, {}, "--headdim default ", "FFPA_DEV_HEADDIMS=default)"),
        (
            {},
            {"kernel": "native.split_d-sm_90a-bf16-d64-s4"},
            "--stages 2,3,4",
            "FFPA_BUILD_STAGES=2,3,4",
        ),
        ({}, {"enable_tma": True, "enable_cute": False}, "--ext all", "ENABLE_FFPA_TMA_EXT=1"),
        ({}, {"enable_cute": True}, "--ext all", "ENABLE_FFPA_CUTE_EXT=1"),
        ({}, {"enable_fp8": True}, "--ext all", "ENABLE_FFPA_CUTE_EXT=1"),
        ({"head_dim": 512}, {"enable_fp8": True}, "--quant-split-d", "ENABLE_FFPA_QUANT_SPLIT_D=1"),
    ],
)
def test_the_flag_that_brings_the_kernel_is_named(
    changes: dict[str, object], backend: dict[str, object], option: str, variable: str
) -> None:
    said = text(backend=CUDABackend(**backend), **changes)
    assert "python -m ffpa_build install --arch " in said
    assert option in said and variable in said


def test_only_flags_that_matter_are_named() -> None:
    said = text(dtype="fp16")
    for name in ("FFPA_DEV_HEADDIMS", "F16_ACC", "MASK_FP32", "STAGES", "QUANT", "_EXT"):
        assert name not in said


def test_an_id_that_is_asked_for_says_everything() -> None:
    said = text(backend=CUDABackend(kernel="native.split_d-sm_89-fp16-d1024-s3-accf16-bias32"))
    assert (
        "FFPA_BUILD_ARCH=sm_89 ENABLE_FFPA_CUDA_INPUT_FP16=1 ENABLE_FFPA_F16_ACC=1 ENABLE_FFPA_CUDA_MASK_FP32=1 "
        "FFPA_DEV_HEADDIMS=default,1024)"
    ) in said
    emulated = text(backend=CUDABackend(kernel="native.split_d_tma-sm_120f-bf16-d64-s3-for_sm_90a"))
    assert "--arch sm_90a --preset emulated" in emulated and "FFPA_BUILD_PRESET=emulated" in emulated


def test_no_build_is_advised_for_what_is_no_id() -> None:
    said = text(backend=CUDABackend(kernel="native.split_d-sm90a-bf16-d64"))
    assert "kernel='native.split_d-sm90a-bf16-d64' is no kernel id; close to it are native.split_d-sm_90a-" in said
    assert "ffpa_build" not in said and "pip install" not in said
    assert "close to it" not in text(backend=CUDABackend(kernel="no id at all"))


def test_an_installed_kernel_that_does_not_fit_the_call_says_why() -> None:
    said = text(backend=CUDABackend(kernel=kernel(features=("bias",)).id))
    assert "is installed and does not serve this call: features bias, needed are none" in said
    assert "ffpa_build" not in said


def test_a_device_that_no_pack_serves_is_told_the_wheel_first() -> None:
    assert "Install it with: pip install 'ffpa[sm120]', or build it with: " in text(device=RTX5090)
    assert "--arch 120 " in text(device=RTX5090)
    served = memory_packs(kernel("sm_120f", head_dim=32))
    assert "pip install" not in text(served, device=RTX5090)


def test_what_is_taken_for_a_default_build_is_one() -> None:
    variants = Path(__file__).resolve().parents[2] / "variants"
    tables = tomllib.loads((variants / "presets.toml").read_text(encoding="utf-8"))
    default = tables["preset"]["default"]
    assert max(tables["head_dims"][default["head_dims"]]) == remedy.DEFAULT_MAX_HEAD_DIM
    assert tuple(default["stages"]) == remedy.DEFAULT_STAGES
    assert tuple(default["features"]) == remedy.DEFAULT_FEATURES
    assert (default["dtypes"], default["acc"]) == (["bf16"], ["f32"])


def test_the_named_options_and_variables_exist() -> None:
    from ffpa_build.flags import FLAGS

    options = {option for flag in FLAGS for option in flag.options}
    variables = {flag.variable for flag in FLAGS}
    needed = remedy.Missing(
        (9, 0), CUDABackend(enable_fp8=True).hint, "fp16", "f16", 1024, frozenset({"bias32", "dropout"})
    )
    for hint in (needed.hint, CUDABackend(enable_tma=True).hint, CUDABackend(enable_cute=True).hint):
        command, _, rest = remedy.remedy(replace(needed, hint=hint), ()).partition(" (in a source tree; ")
        assert {word for word in command.split() if word.startswith("--")} <= options
        assert {word.split("=")[0] for word in rest.rstrip(")").split() if "=" in word} <= variables
