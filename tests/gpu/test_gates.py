"""Calls that a gate sends to SDPA: same meaning, one warning a reason, an error in strict mode."""

import warnings

import pytest
import torch

from ffpa_attn import CUDABackend, explain, ffpa_attn_func
from ffpa_attn.errors import FallbackError, FFPAFallbackWarning

from .support import attend, attention_f64, normal, qkv, relative_error

# (batch, heads, Nq, Nkv, D) just past each gate
GATED = {
    "short-query": (1, 2, 65, 1024, 64),
    "query-511": (1, 2, 511, 1024, 64),
    "short-kv": (1, 2, 512, 511, 64),
    "short-kv-decode": (1, 2, 1, 255, 64),
    "head-dim-1032": (1, 2, 512, 512, 1032),
    "head-dim-60": (1, 2, 512, 512, 60),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("gate", GATED)
@torch.no_grad()
def test_gated_calls_run_on_sdpa_with_the_same_meaning(gate, is_causal):
    q, k, v = qkv(*GATED[gate])
    if is_causal and k.shape[2] < q.shape[2]:
        pytest.skip("causal needs Nkv >= Nq")
    route = explain(q, k, v, backend=CUDABackend(), is_causal=is_causal)
    assert route.kernel is None and route.reason
    expected, _ = attention_f64(q, k, v, is_causal=is_causal)
    for backend in (None, CUDABackend()):
        out = ffpa_attn_func(q, k, v, is_causal=is_causal, backend=backend)
        assert relative_error(out, expected) < 3.5e-3


@pytest.mark.parametrize("gate", GATED)
def test_gated_calls_are_errors_in_strict_mode(gate):
    with pytest.raises(FallbackError):
        attend(*qkv(*GATED[gate]))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("q_len", "kv_len"), [(2, 5), (600, 5000)])
@torch.no_grad()
def test_causal_is_tail_aligned_on_every_route(q_len, kv_len):
    q, k, v = qkv(1, 2, q_len, kv_len, 64)
    expected, expected_lse = attention_f64(q, k, v, is_causal=True)
    for backend in (None, CUDABackend(), "cuda", "sdpa", "reference"):
        out, lse = ffpa_attn_func(q, k, v, is_causal=True, backend=backend, return_lse=True)
        assert relative_error(out, expected) < 3.5e-3
        torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3, rtol=1e-4)


def test_causal_with_fewer_keys_than_queries_is_refused():
    with pytest.raises(ValueError, match="is_causal"):
        attend(*qkv(1, 2, 5, 2, 64), is_causal=True)


def test_mask_with_causal_is_refused():
    q, k, v = qkv(1, 2, 512, 512, 64)
    with pytest.raises(ValueError, match="attn_mask.*is_causal|is_causal.*attn_mask"):
        attend(q, k, v, attn_mask=torch.ones(512, 512, device="cuda", dtype=torch.bool), is_causal=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradients_flow_through_the_fallback():
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 512, 512, 64))
    out = ffpa_attn_func(q, k, v, is_causal=True)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@torch.no_grad()
def test_one_warning_a_reason():
    q, k, v = qkv(1, 3, 77, 901, 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            ffpa_attn_func(q, k, v, backend=CUDABackend())
    assert sum(issubclass(w.category, FFPAFallbackWarning) for w in caught) <= 1


@torch.no_grad()
def test_autocast_casts_mixed_inputs():
    q, k, v = qkv(1, 2, 512, 512, 64)
    with torch.autocast("cuda", torch.bfloat16):
        out = ffpa_attn_func(q.float(), k.float(), v)
    assert out.dtype == torch.bfloat16 and relative_error(out, attention_f64(q, k, v)[0]) < 3.5e-3
    with pytest.raises((TypeError, ValueError), match=r"float32.*bfloat16|dtype"):
        ffpa_attn_func(q.float(), k.float(), v)


def test_halves_of_the_keys_merge_by_lse_to_the_whole():
    q, k, v = qkv(1, 2, 600, 1200, 128)
    whole, whole_lse = attend(q, k, v, return_lse=True)
    (o1, l1), (o2, l2) = (attend(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 600), slice(600, None)))
    lse = torch.logaddexp(l1, l2)
    merged = o1 * torch.exp(l1 - lse)[..., None] + o2 * torch.exp(l2 - lse)[..., None]
    torch.testing.assert_close(lse, whole_lse, atol=1e-4, rtol=1e-5)
    assert relative_error(merged, whole) < 4e-3


def test_inputs_on_the_cpu_and_on_the_gpu_do_not_mix():
    q, k, v = qkv(1, 2, 512, 512, 64)
    with pytest.raises((ValueError, TypeError), match="device"):
        attend(q, k.cpu(), v)


def test_zero_valued_inputs_average_the_values():
    q, k = torch.zeros(2, 1, 2, 512, 64, device="cuda", dtype=torch.bfloat16)
    v = normal(1, 2, 512, 64, seed=4)
    assert relative_error(attend(q, k, v), attention_f64(q, k, v)[0]) < 3.5e-3
