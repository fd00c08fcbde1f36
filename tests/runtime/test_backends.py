from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from ffpa_attn import Backend, CUDABackend, Hint, ReferenceBackend, SDPABackend
from ffpa_attn.backends import decode, resolve_backend


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({}, Hint.AUTO),
        ({"enable_tma": False, "enable_cute": False}, Hint.NATIVE),
        ({"enable_tma": False}, Hint.NATIVE),
        ({"enable_tma": True}, Hint.TMA),
        ({"enable_cute": True}, Hint.CUTE),
        ({"enable_tma": True, "enable_cute": True}, Hint.CUTE_TMA),
        ({"enable_fp8": True, "enable_tma": False}, Hint.CUTE_TMA_FP8),
        ({"enable_fp4": True}, Hint.CUTE_TMA_FP4),
    ],
)
def test_flags_resolve_to_a_hint(options, hint):
    assert CUDABackend(**options).hint is hint


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"acc": "f64"}, ValueError, r"acc='f64'; allowed are 'f32', 'f16'"),
        ({"stages": 0}, ValueError, r"stages=0; allowed is a positive int"),
        ({"stages": True}, TypeError, r"stages=True; an int is needed"),
        ({"enable_tma": 1}, TypeError, r"enable_tma=1; allowed are True, False or None"),
        ({"enable_cute": "yes"}, TypeError, r"enable_cute='yes'"),
        ({"enable_fp8": None}, TypeError, r"enable_fp8=None; allowed are True or False"),
        ({"enable_fp8": True, "enable_fp4": True}, ValueError, r"exclude each other"),
        ({"tensor_layout": "BHND"}, ValueError, r"tensor_layout='BHND'; allowed are 'HND', 'NHD'"),
        ({"backward": True}, ValueError, r"backward=True is not supported.*SDPABackend"),
        ({"kernel": 3}, TypeError, r"kernel id"),
        ({"force_fp8_sm89": True}, ValueError, r"no effect without enable_fp8=True"),
        ({"fp8_smooth_k": False}, ValueError, r"fp8_smooth_k=False has no effect without enable_fp8=True"),
        ({"fp4_hadamard": True}, ValueError, r"fp4_hadamard=True has no effect without enable_fp4=True"),
        ({"enable_fp8": True, "fp8_q_quant_method": "per_row"}, ValueError, r"'per_block', 'per_thread'"),
        ({"enable_fp8": True, "fp8_k_quant_method": "x"}, ValueError, r"fp8_k_quant_method='x'"),
        ({"enable_fp8": True, "fp8_v_quant_method": "per_thread"}, ValueError, r"'per_channel', 'per_block'"),
        ({"enable_fp8": True, "fp8_qk_mm_type": "int4"}, ValueError, r"'fp8', 'int8'"),
        ({"enable_fp8": True, "fp8_pv_acc_type": "bf16"}, ValueError, r"'f32', 'f16'"),
        ({"enable_fp8": True, "fp8_hybrid_n_early": 100}, ValueError, r"positive multiple of 128"),
        ({"enable_fp8": True, "fp8_hybrid": "auto"}, TypeError, r"fp8_hybrid='auto'"),
        ({"enable_fp8": True, "fp8_smooth_v": True, "fp8_v_quant_method": "per_block"}, ValueError, r"per_channel"),
        ({"enable_fp4": True, "fp4_pv_mm_type": "int8"}, ValueError, r"'fp4', 'fp8'"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(options, error, text):
    with pytest.raises(error, match=text):
        CUDABackend(**options)


def test_backends_are_frozen_and_equal_ones_share_a_hash():
    first, second = CUDABackend(stages=2), CUDABackend(stages=2)
    assert first == second and hash(first) == hash(second) and first != CUDABackend()
    assert SDPABackend() != ReferenceBackend()
    with pytest.raises(FrozenInstanceError):
        first.stages = 3  # type: ignore[misc]


def test_names_and_objects_resolve():
    assert resolve_backend("cuda", None) == CUDABackend()
    assert resolve_backend(None, "sdpa") == SDPABackend()
    assert resolve_backend("reference", ReferenceBackend()) == ReferenceBackend()
    assert resolve_backend(None, None) is None


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("triton", None), ValueError, r"backend='triton' is no backend; allowed are 'cuda', 'sdpa', 'reference'"),
        ((None, "x"), ValueError, r"forward_backend='x'"),
        ((3, None), TypeError, r"got int"),
        ((Backend(), None), TypeError, r"got Backend"),
        (("cuda", "sdpa"), ValueError, r"differ; give one"),
        ((CUDABackend(stages=2), "cuda"), ValueError, r"differ"),
    ],
)
def test_a_wrong_choice_of_backend_is_named(arguments, error, text):
    with pytest.raises(error, match=text):
        resolve_backend(*arguments)


@pytest.mark.parametrize(
    "backend",
    [SDPABackend(), ReferenceBackend(), CUDABackend(), CUDABackend(enable_fp8=True, fp8_hybrid=False, stages=2)],
)
def test_the_spec_of_a_backend_gives_the_backend_back(backend):
    assert decode(backend.spec) == backend and decode("") is None


def test_every_field_is_documented():
    assert CUDABackend.__doc__ is not None
    assert [f.name for f in fields(CUDABackend) if f.name not in CUDABackend.__doc__] == []
