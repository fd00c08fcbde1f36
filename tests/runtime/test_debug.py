"""A variable forces a kernel in packs that were built for that, and in no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runtime_fakes import H200, FakeLauncher, attend, kernel, manifest, write_pack

from ffpa_attn.backends import CUDABackend, SDPABackend
from ffpa_attn.config import Config
from ffpa_attn.debug import forced_backend
from ffpa_attn.gates import Gates
from ffpa_attn.manifest import Manifest, ManifestError
from ffpa_attn.packs import Pack, PackSet
from ffpa_attn.runtime import Runtime

TWO, THREE = kernel(stages=2), kernel(stages=3)


def packs_with(root: Path, *debug: str) -> PackSet:
    content = replace(manifest(TWO, THREE), debug=debug)
    return PackSet((Pack("core", write_pack(root / "pack", content), content),))


def config(**variables: str) -> Config:
    return Config.from_environ(variables)


def test_a_call_runs_the_forced_kernel(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    tensors = [torch.randn(1, 1, 8, 64, dtype=torch.bfloat16) for _ in range(3)]
    for variables, expected in (({}, THREE), ({"FFPA_FP16_FORCE_KERNEL": TWO.id}, TWO)):
        runtime = Runtime(
            packs=packs_with(tmp_path / str(len(variables)), "fp16"),
            gates=Gates.open(),
            config=config(**variables),
            launcher=launcher,
            devices=lambda device: H200,
        )
        attend(runtime, *tensors)
        assert launcher.prepared[-1][0] == expected


def test_packs_without_the_mark_do_not_obey_and_this_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="FFPA_FP16_FORCE_KERNEL=.* has no effect: .*--debug-ext fp16"):
        assert forced_backend(None, config(FFPA_FP16_FORCE_KERNEL=TWO.id), packs_with(tmp_path, "fp8")) is None


def test_each_family_has_its_variable(tmp_path: Path) -> None:
    packs = packs_with(tmp_path, "fp16", "fp8", "fp4")
    for variable, backend in (
        ("FFPA_FP8_FORCE_KERNEL", CUDABackend(enable_fp8=True)),
        ("FFPA_FP4_FORCE_KERNEL", CUDABackend(enable_fp4=True)),
        ("FFPA_FP16_FORCE_KERNEL", CUDABackend(stages=2)),
    ):
        assert forced_backend(backend, config(**{variable: TWO.id}), packs) == replace(backend, kernel=TWO.id)
    assert forced_backend(None, config(FFPA_FP8_FORCE_KERNEL=TWO.id), packs) is None


def test_what_the_call_asks_for_comes_first(tmp_path: Path) -> None:
    packs = packs_with(tmp_path, "fp16")
    forced = config(FFPA_FP16_FORCE_KERNEL=TWO.id)
    for backend in (SDPABackend(), CUDABackend(kernel=THREE.id)):
        assert forced_backend(backend, forced, packs) is backend


def test_an_unknown_kernel_is_an_error_and_a_machine_without_packs_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FFPA_FP16_FORCE_KERNEL='x': no kernel of the packs .*: core"):
        forced_backend(None, config(FFPA_FP16_FORCE_KERNEL="x"), packs_with(tmp_path, "fp16"))
    assert forced_backend(None, config(FFPA_FP16_FORCE_KERNEL="x"), PackSet()) is None


def test_the_mark_is_an_optional_key_of_the_manifest() -> None:
    plain, marked = manifest(TWO), replace(manifest(TWO), debug=("fp16", "fp8"))
    assert '"debug"' not in plain.to_json()
    for content in (plain, marked):
        assert Manifest.from_json(content.to_json()) == content
    with pytest.raises(ManifestError, match="debug = 'int8': allowed: fp16, fp8, fp4"):
        Manifest.from_json(marked.to_json().replace('"fp16"', '"int8"'))
