"""Calls that run on a kernel, with a launcher and a device that need no GPU."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime_fakes import H200, L4, RTX5090, FakeLauncher, attend, explain, kernel, packs_of

from ffpa_attn import CUDABackend, Gates, KernelNotFoundError, Runtime, philox, reference


@pytest.fixture
def launcher():
    return FakeLauncher()


@pytest.fixture
def runtime(tmp_path, launcher):
    packs = packs_of(
        tmp_path, kernel(), kernel(dtype="fp16"), kernel(features=("bias",)), kernel(features=("dropout",))
    )
    return Runtime(packs=packs, gates=Gates.open(), launcher=launcher, devices=lambda device: H200)


def tensors(*, heads=4, kv_heads=2, nq=9, nkv=12, d=64, dtype=torch.bfloat16):
    return (torch.randn(1, h, n, d).to(dtype) for h, n in ((heads, nq), (kv_heads, nkv), (kv_heads, nkv)))


def test_a_call_runs_the_kernel_and_a_second_one_its_plan(runtime, launcher):
    q, k, v = tensors()
    out, lse = attend(runtime, q, k, v, is_causal=True, return_lse=True)
    want, want_lse = reference.attention(q, k, v, is_causal=True)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
    q2, k2, v2 = tensors()
    again, _ = attend(runtime, q2, k2, v2, is_causal=True, return_lse=True)
    assert torch.equal(again, reference.attention(q2, k2, v2, is_causal=True)[0])
    assert len(launcher.prepared) == 1 and len(launcher.launched) == 2
    assert isinstance(attend(runtime, q, k, v), torch.Tensor) and len(launcher.prepared) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"is_causal": True},
        {"scale": 0.5},
        {"return_lse": True},
        {"backend": CUDABackend(stages=2)},
        {"attn_mask": torch.ones(9, 12, dtype=torch.bool)},
        {"dropout_p": 0.5},
    ],
)
@pytest.mark.parametrize("calls", [1, 3])
def test_whatever_changes_the_call_makes_another_plan(runtime, launcher, change, calls):
    q, k, v = tensors()
    for _ in range(calls):
        attend(runtime, q, k, v)
    attend(runtime, q, k, v, **change)
    assert len(launcher.prepared) == 2


VARIED = [
    {},
    {"is_causal": True},
    {"scale": 0.5},
    {"return_lse": True},
    {"backend": CUDABackend(acc="f32")},
    {"backend": "sdpa"},
    {"backend": "reference"},
    {"attn_mask": torch.rand(9, 12) > 0.3},
    {"nkv": 20},
    {"heads": 2, "kv_heads": 4, "dtype": torch.float16},
    {"nq": 0},
]


@given(order=st.lists(st.tuples(st.integers(0, len(VARIED) - 1), st.integers(1, 4)), min_size=2, max_size=6))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore::ffpa_attn.errors.FFPAFallbackWarning")
def test_calls_in_any_order_give_their_own_results(runtime, order):
    for number, repeats in order:
        options = dict(VARIED[number])
        shape = {name: options.pop(name) for name in ("nq", "nkv", "heads", "kv_heads", "dtype") if name in options}
        if "heads" in shape:
            shape["heads"], shape["kv_heads"] = shape["kv_heads"], shape["heads"]
        for _ in range(repeats):
            q, k, v = tensors(**shape)
            got = attend(runtime, q, k, v, **options)
            wanted = {name: value for name, value in options.items() if name not in ("backend", "return_lse")}
            out, lse = reference.attention(q, k, v, **wanted)
            torch.testing.assert_close(got[0] if "return_lse" in options else got, out, rtol=2e-2, atol=2e-2)
            if "return_lse" in options:
                torch.testing.assert_close(got[1], lse.to(got[1].dtype))


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("backend", [None, "sdpa", "reference"])
@pytest.mark.parametrize("name, wrong", [("is_causal", 1), ("is_causal", 0), ("return_lse", 0), ("scale", True)])
def test_options_that_only_equal_good_ones_are_refused_on_every_call(runtime, backend, name, wrong, calls):
    q, k, v = tensors()
    good = {"is_causal": [False, True][wrong], "return_lse": False, "scale": 1.0}[name]
    for _ in range(calls):
        attend(runtime, q, k, v, backend=backend, **{name: good})
    with pytest.raises(TypeError, match=name):
        attend(runtime, q, k, v, backend=backend, **{name: wrong})


def test_other_strides_make_another_plan(runtime, launcher):
    q, k, v = tensors()
    attend(runtime, q, k, v)
    nhd = q.transpose(1, 2).contiguous().transpose(1, 2)
    out = attend(runtime, nhd, k, v)
    assert len(launcher.prepared) == 2 and out.transpose(1, 2).is_contiguous()


def test_a_tensor_that_does_not_fit_the_plan_is_checked_again(runtime):
    q, k, v = tensors()
    attend(runtime, q, k, v)
    with pytest.raises(TypeError, match=r"key=torch.float16"):
        attend(runtime, q, k.half(), v)


def test_gradients_pass_the_plan_by(runtime, launcher):
    q, k, v = tensors()
    attend(runtime, q, k, v)
    with pytest.warns(UserWarning, match="gradients are needed"):
        out = attend(runtime, q.clone().requires_grad_(), k, v)
    assert out.requires_grad and len(launcher.launched) == 1
    with torch.no_grad():
        assert not attend(runtime, q.clone().requires_grad_(), k, v).requires_grad
    assert len(launcher.launched) == 2


def test_forward_mode_gradients_pass_the_plan_by(runtime, launcher):
    q, k, v = tensors()
    attend(runtime, q, k, v)
    with torch.autograd.forward_ad.dual_level(), pytest.warns(UserWarning, match="gradients are needed"):
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            out = attend(runtime, dual, k, v)
        assert torch.autograd.forward_ad.unpack_dual(out).tangent is not None
    assert len(launcher.launched) == 1


def test_autocast_casts_on_a_kernel_route_too(runtime, launcher):
    q, k, v = tensors(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        assert attend(runtime, q, k, v).dtype == torch.float16
    assert launcher.prepared[0][0].dtype == "fp16"


def test_nhd_inputs_give_an_nhd_result(runtime, launcher):
    q, k, v = (t.transpose(1, 2).contiguous() for t in tensors())
    backend = CUDABackend(tensor_layout="NHD")
    want = reference.attention(*(t.transpose(1, 2) for t in (q, k, v)))[0].transpose(1, 2)
    for _ in range(2):
        out, lse = attend(runtime, q, k, v, backend=backend, return_lse=True)
        assert torch.equal(out, want) and out.is_contiguous() and lse.shape == (1, 4, 9)
    assert len(launcher.prepared) == 1


def test_masks_reach_the_launcher_expanded_and_in_a_dtype_that_it_reads(runtime, launcher):
    q, k, v = tensors()
    mask = torch.zeros(1, 12)
    mask[0, 3] = torch.finfo(torch.float32).min
    for _ in range(2):
        out = attend(runtime, q, k, v, mask)
        given = launcher.launched[-1][3]
        assert given.shape == (1, 4, 9, 12) and given.dtype == torch.bfloat16 and torch.isfinite(given).all()
        torch.testing.assert_close(out, reference.attention(q, k, v, mask)[0])
    assert "attn_mask is converted from float32 to torch.bfloat16" in explain(runtime, q, k, v, mask).copies[0]


@pytest.mark.parametrize("mask", [torch.randn(9, 12), torch.randn(2, 12)[:1].expand(9, 12), torch.randn(12, 9).T])
def test_rows_of_a_converted_mask_start_on_16_bytes(runtime, launcher, mask):
    q, k, v = tensors()
    out = attend(runtime, q, k, v, mask)
    given = launcher.launched[-1][3]
    assert given.stride(3) == 1 and given.stride(2) * given.element_size() % 16 == 0
    torch.testing.assert_close(out, reference.attention(q, k, v, mask.bfloat16())[0])


@pytest.mark.parametrize("order", list(itertools.permutations(["float32", "own", "bool"])))
def test_kinds_of_masks_that_one_kernel_serves_do_not_disturb_each_other(runtime, launcher, order):
    """They share a choice of kernel; only float32 masks are converted."""
    q, k, v = tensors()
    allowed = torch.rand(9, 12) > 0.4
    allowed[:, 0] = True
    masks = {"float32": torch.randn(9, 12), "own": torch.randn(9, 12).bfloat16(), "bool": allowed}
    for kind in order + order:
        rounded = masks[kind].bfloat16() if kind == "float32" else masks[kind]
        want = reference.attention(q, k, v, rounded)[0]
        assert torch.equal(attend(runtime, q, k, v, masks[kind]), want), kind
        assert bool(explain(runtime, q, k, v, masks[kind]).copies) == (kind == "float32")
    assert {row.id for row, *_ in launcher.prepared} == {kernel(features=("bias",)).id}


def test_dropout_takes_its_stream_from_torchs_generator(runtime, launcher):
    q, k, v = tensors()
    outs = []
    for _ in range(2):
        torch.manual_seed(11)
        outs.append(attend(runtime, q, k, v, dropout_p=0.3))
    assert torch.equal(*outs)
    seed, offset, added = launcher.launched[0][4]
    torch.manual_seed(11)
    assert torch.equal(torch.stack([seed, offset]), philox.draw(q.device)) and added == 0
    stream = philox.stream_of(torch.stack([seed, offset]))
    assert torch.equal(outs[0], reference.attention(q, k, v, dropout_p=0.3, philox=stream)[0])


def test_a_call_draws_once_whatever_plan_came_before(runtime, launcher):
    q, k, v = tensors()
    other = tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    want = None
    for inputs in ((q, k, v), other, (q, k, v), other):
        torch.manual_seed(5)
        attend(runtime, *inputs, dropout_p=0.3)
        state = torch.get_rng_state()
        want = state if want is None else want
        assert torch.equal(state, want)


def test_head_dims_are_rounded_up_and_the_scale_is_the_true_one(runtime, launcher):
    q, k, v = tensors(d=40)
    attend(runtime, q, k, v)
    assert launcher.prepared[0][0].head_dim == 64 and launcher.prepared[0][2].scale == 40**-0.5


@pytest.mark.parametrize(("nq", "nkv", "causal"), [(0, 5, False), (5, 0, True), (0, 0, True)])
def test_empty_calls_launch_nothing(runtime, launcher, nq, nkv, causal):
    q, k, v = tensors(nq=nq, nkv=nkv)
    out, lse = attend(runtime, q, k, v, is_causal=causal, return_lse=True)
    assert out.shape == q.shape and (out == 0).all() and (lse == -torch.inf).all()
    assert launcher.prepared == []


def test_a_named_backend_without_its_kernel_raises_and_an_unnamed_one_falls_back(runtime):
    q, k, v = tensors(d=512)
    with pytest.raises(KernelNotFoundError, match="head dim 512 .*H200.*packs seen: core.*ffpa_build"):
        attend(runtime, q, k, v, backend="cuda")
    assert explain(runtime, q, k, v, backend="cuda").route == "error"
    with pytest.warns(UserWarning, match="no kernel for prefill bf16"):
        attend(runtime, q, k, v)


def test_bf16_inputs_with_f16_accumulators_are_an_error(runtime):
    q, k, v = tensors()
    backend = CUDABackend(acc="f16")
    with pytest.raises(ValueError, match="bf16 inputs cannot accumulate in f16; use acc='f32'"):
        attend(runtime, q, k, v, backend=backend)
    assert explain(runtime, q, k, v, backend=backend).route == "error"


def test_each_tensors_device_decides_which_kernel_runs(tmp_path, launcher):
    """Two cards of different kinds in one process, and one that no pack serves."""
    runtime = Runtime(
        packs=packs_of(tmp_path, kernel(), kernel("sm_89")),
        gates=Gates.open(),
        launcher=launcher,
        devices=lambda device: {"cpu": H200, "meta": replace(L4, index=1)}.get(device.type, RTX5090),
    )
    q = torch.randn(1, 2, 9, 64, dtype=torch.bfloat16)
    assert explain(runtime, q, q, q).kernel == kernel().id
    assert explain(runtime, *[q.to("meta")] * 3).kernel == kernel("sm_89").id
    uncovered = Runtime(packs=runtime.packs, gates=Gates.open(), launcher=launcher, devices=lambda device: RTX5090)
    with pytest.raises(KernelNotFoundError, match=r"RTX 5090 \(compute capability 12.0\).*pip install 'ffpa\[sm120\]'"):
        attend(uncovered, q, q, q, backend="cuda")
    assert launcher.prepared == []


def test_explain_shows_the_kernel_its_rivals_and_the_copies(runtime):
    q, k, v = tensors()
    explained = explain(runtime, q, k.transpose(2, 3).contiguous().transpose(2, 3), v)
    assert (explained.route, explained.kernel, explained.reason) == ("kernel", kernel().id, None)
    assert explained.copies == ("key is made contiguous: its last dimension has stride 12",)
    text = str(explained)
    assert f"route: kernel {kernel().id} of pack core" in text and "chosen" in text
    assert f"{kernel(dtype='fp16').id} [core]: dtype fp16, not bf16" in text and "pack: core 0.1.0" in text


def test_the_number_of_plans_is_bounded(tmp_path, launcher):
    runtime = Runtime(
        packs=packs_of(tmp_path, kernel()),
        gates=Gates.open(),
        launcher=launcher,
        devices=lambda device: H200,
        max_plans=3,
    )
    for n in range(1, 11):
        attend(runtime, *tensors(nq=n))
        assert len(runtime._plans) <= 3


def test_threads_share_a_runtime(runtime):
    inputs = [tuple(tensors(nq=n)) for n in range(1, 5)]
    wrong = []

    def work(index):
        for _ in range(20):
            q, k, v = inputs[index]
            if not torch.equal(attend(runtime, q, k, v), reference.attention(q, k, v)[0]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i % 4,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": CUDABackend(tensor_layout="NHD")},
        {"attn_mask": torch.zeros(9, 12), "return_lse": True},
        {"dropout_p": 0.5},
        {"backend": "sdpa"},
        {"backend": "reference"},
    ],
)
def test_kept_plans_keep_no_tensors(runtime, launcher, options):
    q, k, v = tensors()
    if "NHD" in str(options):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    attend(runtime, q, k, v, **options)
    assert runtime._plans
    launcher.launched.clear()
    kept = [weakref.ref(tensor) for tensor in (q, k, v)]
    del q, k, v
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3


def test_layouts_that_take_turns_keep_their_plans(runtime, launcher):
    q, k, v = tensors()
    swapped = torch.randn(1, 12, 2, 64).to(torch.bfloat16).transpose(1, 2)
    for key in (k, swapped, k, swapped):
        out = attend(runtime, q, key, v)
        assert torch.equal(out, reference.attention(q, key, v)[0])
    assert len(launcher.prepared) == 2 and len(launcher.launched) == 4


@pytest.mark.filterwarnings("ignore::ffpa_attn.errors.FFPAFallbackWarning", "ignore:There is a performance drop")
def test_vmap_does_not_reach_a_kernel(runtime, launcher):
    q = torch.randn(3, 1, 2, 8, 64, dtype=torch.bfloat16)
    got = torch.vmap(lambda t: attend(runtime, t, t, t))(q)
    torch.testing.assert_close(got, torch.stack([attend(runtime, t, t, t, backend="sdpa") for t in q]))
    assert launcher.prepared == []
