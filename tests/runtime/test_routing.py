from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_fakes import H200, L4, RTX5090, kernel, memory_packs, problem

from ffpa_attn import CUDABackend, Gates, ReferenceBackend, SDPABackend
from ffpa_attn.gates import OPENINGS, Opening
from ffpa_attn.packs import PackSet, RejectedPack
from ffpa_attn.recipes import busiest_share
from ffpa_attn.routing import FallbackRoute, KernelRoute, ReferenceRoute, route
from ffpa_build.matrix import expand
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec

D64 = memory_packs(kernel())


def chosen(packs, *, device=H200, backend=None, gates=None, **facts):
    taken = route(problem(**facts), device, backend, packs, gates)
    assert isinstance(taken, KernelRoute), taken
    return taken.kernel


def reason(packs=D64, *, device=H200, backend=None, gates=None, **facts):
    taken = route(problem(**facts), device, backend, packs, gates)
    assert isinstance(taken, FallbackRoute), taken
    return taken.reason


def lost(packs, kernel_id, **options):
    taken = route(problem(**options.pop("facts", {})), options.pop("device", H200), options.get("backend"), packs)
    return next(c.lost for c in taken.candidates if c.kernel.id == kernel_id)


def test_a_kernel_that_fits_is_taken_without_and_with_a_named_backend():
    assert chosen(D64).head_dim == 64
    assert chosen(D64, backend=CUDABackend()).head_dim == 64


@pytest.mark.parametrize(
    ("facts", "code", "text"),
    [
        ({"needs_grad": True}, "gradients", "forward-only"),
        ({"dtype": "fp32"}, "dtype", "fp16 and bf16"),
        ({"head_dim": 1032}, "head_dim", "1032 is larger than 1024"),
        ({"head_dim": 60}, "head_dim", "60 is not a multiple of 8"),
        ({"value_dim": 32}, "value_dim", "32"),
        ({"q_len": 8}, "q_len", "8 queries"),
        ({"q_len": 511}, "q_len", "511 queries"),
        ({"kv_len": 511}, "kv_len", "511 keys"),
    ],
)
@pytest.mark.parametrize("backend", [None, CUDABackend()])
def test_gates_lead_to_sdpa(facts, code, text, backend):
    got = reason(backend=backend, gates=Gates(openings=()), **facts)
    assert got.code == code and text in got.text


@pytest.mark.parametrize("facts", [{"q_len": 512, "kv_len": 512}, {"q_len": 7}, {"q_len": 1}])
def test_calls_at_the_edge_of_the_gates_run_on_kernels(facts):
    assert chosen(D64, **facts)


def test_small_head_dims_go_to_sdpa_when_the_setting_says_so():
    wide = memory_packs(kernel(head_dim=64), kernel(head_dim=320))
    gates = Gates(allow_small_d=False)
    got = reason(wide, gates=gates, head_dim=256)
    assert got.code == "small_d" and "FFPA_CUDA_ALLOW_SMALL_D=0" in got.text
    assert chosen(wide, gates=gates, head_dim=264).head_dim == 320


def test_bf16_cannot_accumulate_in_f16_and_fp16_can():
    assert reason(backend=CUDABackend(acc="f16")).code == "acc"
    packs = memory_packs(kernel(dtype="fp16"), kernel(dtype="fp16", acc="f16"))
    assert chosen(packs, backend=CUDABackend(acc="f16"), dtype="fp16").acc == "f16"
    assert chosen(packs, dtype="fp16").acc == "f32"


def test_other_devices_and_named_backends():
    assert reason(device=None, device_type="cpu").code == "device"
    assert reason(backend=SDPABackend()).code == "requested"
    assert isinstance(route(problem(), H200, ReferenceBackend(), D64), ReferenceRoute)


OPENING = Opening((9, 0), "decode", head_dims=(64, 128), q_lens=(8, 16), kv_lens=(256, 511), heads=(1, 32))


@pytest.mark.parametrize(
    ("facts", "inside"),
    [
        ({"q_len": 8, "kv_len": 256, "head_dim": 64}, True),
        ({"q_len": 16, "kv_len": 511, "head_dim": 128}, True),
        ({"q_len": 17}, False),
        ({"kv_len": 255}, False),
        ({"head_dim": 136}, False),
        ({"batch": 4, "heads": 8, "kv_heads": 8}, True),
        ({"batch": 4, "heads": 9, "kv_heads": 9}, False),
        ({"mask_kind": "additive"}, False),
        ({"dropout_p": 0.1}, False),
    ],
)
def test_an_opening_lets_measured_short_problems_through(facts, inside):
    packs = memory_packs(
        *(kernel(head_dim=256, features=f) for f in ((), ("bias",), ("dropout",))),
        kernel(head_dim=256, impl="native.split_kv", recipe="split_kv", problems=("decode",)),
        kernel(head_dim=256, impl="native.merge", recipe="merge", problems=("merge",)),
    )
    gates, facts = Gates(openings=(OPENING,)), {"q_len": 8, "kv_len": 300, "head_dim": 64} | facts
    if inside:
        assert chosen(packs, gates=gates, **facts).impl == "split_kv"
    else:
        assert reason(packs, gates=gates, **facts).code in ("q_len", "kv_len")
    other = replace(H200, capability=(10, 0))
    assert reason(packs, gates=gates, device=other, **facts).code in ("q_len", "kv_len")


def test_an_opening_does_not_undo_the_other_gates():
    gates = Gates(openings=(OPENING,), allow_small_d=False)
    assert reason(D64, gates=gates, q_len=8, kv_len=300).code == "small_d"


def test_every_opening_of_the_project_holds_somewhere_and_is_below_a_gate():
    gates = Gates(openings=())
    for opening in OPENINGS:
        (d, _), (q, _), (kv, _) = opening.head_dims, opening.q_lens, opening.kv_lens
        heads = opening.heads[0]
        short = problem(batch=1, heads=heads, kv_heads=heads, head_dim=d, q_len=q, kv_len=kv)
        assert opening.holds(short, opening.capability) and gates.kind(short, opening.capability) is None


def test_open_gates_serve_any_length():
    assert chosen(D64, gates=Gates.open(), q_len=100, kv_len=3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 128), st.sets(st.sampled_from([64, 128, 192, 256, 320, 512, 768, 1024]), min_size=1))
def test_the_smallest_compiled_head_dim_that_holds_it(eighth, compiled):
    packs = memory_packs(*(kernel(head_dim=d) for d in compiled))
    d = eighth * 8
    if d > max(compiled):
        assert reason(packs, head_dim=d).code == "no_kernel"
    else:
        assert chosen(packs, head_dim=d).head_dim == min(c for c in compiled if c >= d)


def test_capability_matches_exactly_and_the_own_arch_comes_first():
    packs = memory_packs(kernel("sm_80"), kernel("sm_89"), kernel("sm_90a"))
    assert chosen(packs, device=L4).arch == "sm_89"
    assert chosen(packs).arch == "sm_90a"
    assert chosen(packs, device=replace(L4, capability=(8, 6))).arch == "sm_80"
    assert reason(packs, device=RTX5090).code == "no_kernel"
    assert "closer to the device than sm_80" in lost(packs, kernel("sm_80").id, device=L4)


def test_a_kernel_must_fit_in_the_shared_memory_of_the_device():
    big = kernel("sm_80", smem_bytes=160 * 1024, stages=4)
    small = kernel("sm_80", smem_bytes=90 * 1024, stages=2)
    packs = memory_packs(big, small)
    assert chosen(packs, device=L4, backend=CUDABackend(stages=4)).stages == 2
    assert "needs 163840 bytes of shared memory a block, L4 has 101376" in lost(packs, big.id, device=L4)


@pytest.mark.parametrize(
    ("facts", "features"),
    [
        ({}, ()),
        ({"mask_kind": "boolean"}, ("bias",)),
        ({"mask_kind": "additive"}, ("bias",)),
        ({"mask_kind": "additive_f32"}, ("bias32",)),
        ({"dropout_p": 0.1}, ("dropout",)),
        ({"dropout_p": 0.1, "mask_kind": "boolean"}, ("bias", "dropout")),
    ],
)
def test_a_kernel_has_exactly_the_features_of_the_call(facts, features):
    sets = [(), ("bias",), ("bias32",), ("dropout",), ("bias", "dropout")]
    packs = memory_packs(*(kernel(features=f) for f in sets))
    assert chosen(packs, **facts).features == features
    without = memory_packs(*(kernel(features=f) for f in sets if f != features))
    if facts.get("mask_kind") != "additive_f32":
        assert reason(without, **facts).code == "no_kernel"


@pytest.mark.parametrize("mask_kind", ["boolean", "additive"])
def test_masks_that_a_wgmma_kernel_cannot_read_go_to_the_next_kernel(mask_kind):
    picky = kernel(impl="hopper.bm128", ext="hopper", recipe="wgmma", features=("bias",))
    other = kernel(features=("bias",), rank=2)
    packs = memory_packs(picky, other)
    assert chosen(packs, mask_kind=mask_kind, mask_alignment=16) == picky
    for alignment in (0, 2, 8):
        facts = {"mask_kind": mask_kind, "mask_alignment": alignment}
        assert chosen(packs, **facts) == other
        assert "rows that start on 16 bytes" in lost(packs, picky.id, facts=facts)


@pytest.mark.parametrize(("alignment", "expected"), [(4, "hopper.bm128"), (0, "native.split_d")])
def test_a_converted_mask_suits_a_wgmma_kernel_where_its_columns_are_dense(alignment, expected):
    picky = kernel(impl="hopper.bm128", ext="hopper", recipe="wgmma", features=("bias",))
    packs = memory_packs(picky, kernel(features=("bias",), rank=2))
    taken = route(problem(mask_kind="additive_f32", mask_alignment=alignment), H200, None, packs)
    assert isinstance(taken, KernelRoute) and taken.cast_mask
    assert f"{taken.kernel.family}.{taken.kernel.impl}" == expected


def test_without_a_mask_its_alignment_does_not_matter():
    plain = kernel(impl="hopper.bm128", ext="hopper", recipe="wgmma")
    assert chosen(memory_packs(plain), mask_alignment=0) == plain


def test_a_float32_mask_is_cast_where_no_kernel_reads_it():
    taken = route(problem(mask_kind="additive_f32"), H200, None, memory_packs(kernel(features=("bias",))))
    assert isinstance(taken, KernelRoute) and taken.cast_mask
    both = memory_packs(kernel(features=("bias",)), kernel(features=("bias32",)))
    taken = route(problem(mask_kind="additive_f32"), H200, None, both)
    assert isinstance(taken, KernelRoute) and not taken.cast_mask and taken.kernel.features == ("bias32",)


def test_decode_prefers_decode_kernels_and_prefill_never_takes_them():
    prefill, decode = kernel(), kernel(impl="native.split_kv", problems=("decode",), rank=1)
    packs = memory_packs(prefill, decode)
    assert chosen(packs, q_len=1) == decode and chosen(packs, q_len=512) == prefill
    assert chosen(D64, q_len=7) == prefill
    assert reason(memory_packs(decode)).code == "no_kernel"


AUTO = (
    kernel(rank=2),
    kernel(impl="tma.ws", ext="tma", rank=1, box_cols=64),
    kernel(impl="hopper.bm128", ext="hopper", rank=0, box_cols=64),
    kernel(impl="cute_fp16.persist_d", ext="cute", rank=-1),
    kernel(impl="cute_fp16.persist_d_tma", ext="cute", rank=-1, box_cols=64),
    kernel(impl="cute_fp8.persist_d", ext="fp8", rank=-1),
    kernel(impl="cute_fp8.persist_d_tma", ext="fp8", rank=-1, box_cols=64),
    kernel(impl="cute_fp4.persist_d", ext="fp4", rank=-1, box_cols=64),
)


def kernels_of_the_tables(arch):
    """Rows as a release has them for `arch`, with the order in which the tables put them."""
    spec = load_spec()
    variants = expand(spec, Selection.make(spec, "release", archs=arch)).variants
    for v in variants:
        yield kernel(
            arch,
            impl=v.impl.id,
            ext=v.impl.ext,
            recipe=v.impl.recipe,
            problems=v.impl.problems,
            rank=v.rank,
            order=v.impl.order,
            dtype=v.dtype,
            head_dim=v.head_dim,
            stages=v.stages,
            features=v.features,
            box_cols=64 if v.impl.ext == "tma" else 0,
        )


SM120 = memory_packs(*kernels_of_the_tables("sm_120f"), pack="sm120")


@pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
@pytest.mark.parametrize("head_dim", [64, 72, 512, 1000])
def test_what_the_sm_120_pack_runs_unasked_and_under_each_hint(capability, head_dim):
    device = replace(RTX5090, capability=capability)

    def impl(packs=SM120, backend=None, **facts):
        return chosen(packs, device=device, backend=backend, head_dim=head_dim, **facts).impl

    for facts in ({}, {"mask_kind": "boolean"}, {"mask_kind": "additive_f32"}, {"dropout_p": 0.1}, {"dtype": "fp16"}):
        assert impl(**facts) == "split_d_tma_ws"
        assert impl(backend=CUDABackend(enable_tma=True), **facts) == "split_d_tma_ws"
        assert impl(backend=CUDABackend(enable_tma=False), **facts) == "split_d"
    assert impl(q_len=1) == impl(q_len=7, backend=CUDABackend(enable_tma=True)) == "split_kv"
    native = memory_packs(*(k for k in SM120.packs[0].kernels if k.ext == "native"))
    assert impl(native) == "split_d"
    cute = kernel("sm_120f", impl="cute.persist_d_tma", ext="cute", rank=0, box_cols=64, head_dim=1024)
    later = [replace(k, rank=k.rank + 1) for k in SM120.packs[0].kernels]
    assert impl(memory_packs(cute, *later)) == "persist_d_tma"


def test_of_two_impls_of_one_ext_the_order_decides_before_the_stages():
    first = kernel(impl="native.b", stages=2)
    second = kernel(impl="native.a", stages=4, order=1)
    packs = memory_packs(second, first)
    assert chosen(packs) == first and lost(packs, second.id) == "b comes before a"
    assert chosen(packs, head_dim=64, backend=CUDABackend(kernel=second.id)) == second
    closer = memory_packs(replace(kernel(impl="native.b", head_dim=128)), second)
    assert chosen(closer) == second


BM192, BM256, BM128 = TILES = [
    kernel(impl=f"hopper.bm{rows}", ext="hopper", recipe="wgmma", tile_m=rows, row_cost=cost, order=order)
    for order, (rows, cost) in enumerate([(192, 100), (256, 107), (128, 121)])
]


@pytest.mark.parametrize(
    ("facts", "best"),
    [
        ({"q_len": 1024}, BM256),  # 192 tiles of 192 rows make two waves of 132 blocks, 128 of 256 one
        ({"q_len": 4096}, BM256),
        ({"q_len": 8192}, BM192),  # 11 waves of 192 rows, 8 of 256
        ({"q_len": 1024, "heads": 16}, BM128),  # one wave each
        ({"q_len": 1024, "heads": 16, "batch": 2}, BM256),
        ({"q_len": 1024, "is_causal": True}, BM128),
        ({"q_len": 4096, "is_causal": True}, BM192),
        ({"q_len": 1024, "heads": 64, "is_causal": True}, BM256),
        ({"q_len": 1024, "device": replace(H200, sm_count=192)}, BM192),
    ],
)
def test_of_kernels_that_differ_in_their_tiles_the_one_that_divides_the_call_best_runs(facts, best):
    facts = {"heads": 32, "kv_heads": 32, **facts}
    device = facts.pop("device", H200)
    packs, choices = memory_packs(BM128, BM256, BM192), {}
    for q_len in (512, facts["q_len"], 8192, facts["q_len"]):  # whatever calls came before
        taken = route(problem(**{**facts, "q_len": q_len, "kv_len": q_len}), device, None, packs, choices=choices)
    assert taken.kernel == best
    assert {candidate.kernel for candidate in taken.candidates} == set(TILES) and taken.candidates[0].lost is None
    assert [candidate.kernel for candidate in taken.candidates if candidate.lost is None] == [best]
    if best is BM256:
        assert lost(packs, BM192.id, facts={**facts, "kv_len": facts["q_len"]}) == (
            "tiles of 256 rows suit this call and 132 multiprocessors better than those of 192"
        )
    for asked in TILES:
        assert chosen(packs, device=device, backend=CUDABackend(kernel=asked.id), **facts) == asked


@pytest.mark.parametrize("change", [{"row_cost": 0}, {"stages": 2}, {"head_dim": 128}, {"recipe": "split_d"}])
def test_kernels_that_differ_in_more_than_their_tiles_are_not_weighed(change):
    other = replace(BM256, **change)
    for first, second in ((BM192, other), (other, replace(BM192, order=2))):
        taken = route(problem(heads=32, q_len=1024), H200, None, memory_packs(first, second))
        assert taken.peers == ()


@given(
    tile=st.sampled_from([64, 128, 192, 256]),
    q_len=st.integers(1, 3000),
    past=st.integers(0, 3000),
    heads=st.integers(1, 200),
)
def test_the_busiest_share_of_a_causal_call_is_that_of_its_visible_keys(tile, q_len, past, heads):
    kv_len = q_len + past
    facts = {"q_len": q_len, "kv_len": kv_len, "heads": heads, "kv_heads": heads}
    row = kernel(recipe="wgmma", tile_m=tile, row_cost=100)
    ends = [min(first + tile, q_len) + past for first in range(0, q_len, tile)]
    share = busiest_share(row, problem(is_causal=True, **facts), H200)
    assert share == pytest.approx(max(1, sum(ends) * heads / kv_len / H200.sm_count) * tile * 100)
    assert share <= busiest_share(row, problem(**facts), H200)


@pytest.mark.parametrize(
    ("options", "impl"),
    [
        ({}, "bm128"),
        ({"enable_tma": False, "enable_cute": False}, "split_d"),
        ({"enable_tma": True}, "ws"),
        ({"enable_cute": True}, "persist_d"),
        ({"enable_cute": True, "enable_tma": True}, "persist_d_tma"),
        ({"enable_fp8": True, "force_fp8_sm89": True}, "persist_d"),
        ({"enable_fp4": True}, "persist_d"),
    ],
)
def test_hints_choose_the_family(options, impl):
    backend = CUDABackend(**options)
    got = chosen(memory_packs(*AUTO), backend=backend)
    assert got.impl == impl
    assert (got.ext == "fp8", got.ext == "fp4") == (backend.enable_fp8, backend.enable_fp4)


def test_a_hint_without_its_kernel_is_missing_and_native_stands_in_where_it_must():
    assert reason(backend=CUDABackend(enable_tma=True)).code == "no_kernel"
    assert reason(backend=CUDABackend(enable_cute=True)).code == "no_kernel"
    assert chosen(D64, backend=CUDABackend(enable_tma=True), q_len=1).ext == "native"
    assert chosen(D64, backend=CUDABackend(enable_cute=True), head_dim=40).ext == "native"
    bias = memory_packs(kernel(features=("bias",)))
    assert chosen(bias, backend=CUDABackend(enable_cute=True), mask_kind="boolean").ext == "native"
    assert reason(bias, backend=CUDABackend(enable_tma=True), mask_kind="boolean").code == "no_kernel"


@pytest.mark.parametrize(
    ("device", "arch", "ext", "wanted"),
    [
        (H200, "sm_90a", "native", 4),
        (H200, "sm_90a", "tma", 4),
        (H200, "sm_90a", "cute", 2),
        (L4, "sm_89", "native", 3),
        (L4, "sm_89", "cute", 2),
    ],
)
def test_automatic_stages(device, arch, ext, wanted):
    packs = memory_packs(*(kernel(arch, ext=ext, stages=s) for s in (1, 2, 3, 4, 5)))
    assert chosen(packs, device=device).stages == wanted


@pytest.mark.parametrize(("asked", "got"), [(1, 2), (2, 2), (3, 2), (4, 5), (9, 5)])
def test_the_nearest_compiled_stages_are_used(asked, got):
    packs = memory_packs(kernel(stages=2), kernel(stages=5))
    assert chosen(packs, backend=CUDABackend(stages=asked)).stages == got


def test_one_kernel_can_be_asked_for_and_emulated_ones_only_so():
    emulated = replace(kernel(stages=4, suffix="-for_sm_90a"), arch="sm_120f")
    packs = memory_packs(kernel(stages=2), kernel(stages=3), emulated)
    assert chosen(packs).stages == 3
    assert chosen(packs, backend=CUDABackend(kernel=emulated.id)) == emulated
    assert chosen(packs, backend=CUDABackend(kernel=kernel(stages=2).id)).stages == 2
    assert reason(packs, backend=CUDABackend(kernel="other")).code == "no_kernel"
    assert "emulates another arch" in lost(packs, emulated.id)


def test_every_candidate_keeps_its_reason():
    packs = memory_packs(kernel(stages=3), kernel(stages=2), kernel(head_dim=128), kernel(dtype="fp16"))
    taken = route(problem(), H200, None, packs)
    assert [c.lost is None for c in taken.candidates] == [True, False, False, False]
    assert lost(packs, kernel(stages=2).id) == "stages 3 is closer to 4"
    assert lost(packs, kernel(head_dim=128).id) == "head dim 64 is closer"
    assert lost(packs, kernel(dtype="fp16").id) == "dtype fp16, not bf16"


def test_a_missing_kernel_names_variant_packs_and_command():
    packs = replace(D64, rejected=(RejectedPack("fp8", "ffpa-fp8", "9", "version 9 does not fit"),))
    got = reason(packs, head_dim=512, backend=CUDABackend(enable_fp8=True))
    for part in ("bf16", "512", "cute_tma_fp8", "H200", "9.0", "core 0.1.0", "version 9 does not fit", "ffpa_build"):
        assert part in got.text
    assert "pip install 'ffpa[sm120]'" in reason(PackSet(), device=RTX5090).text
    assert "packs seen: none" in reason(PackSet()).text


def test_a_kernel_that_splits_the_keys_brings_its_merge_kernel():
    splitting = kernel(impl="native.split_kv", recipe="split_kv", problems=("decode",))
    other = kernel(impl="native.merge", recipe="merge", problems=("merge",), dtype="fp16")
    merge = kernel(impl="native.merge", recipe="merge", problems=("merge",))
    decode = problem(q_len=1)
    taken = route(decode, H200, None, memory_packs(other, merge, splitting, kernel()))
    assert taken.kernel == splitting and taken.merge == merge
    without = route(decode, H200, None, memory_packs(other, splitting, kernel()))
    assert without.kernel == kernel() and without.merge is None
    assert "the pack lacks its merge kernel" in [candidate.lost for candidate in without.candidates]


def test_a_choice_is_walked_once_for_every_length(monkeypatch):
    from ffpa_attn import routing

    walks = []
    walk = routing._walk
    monkeypatch.setattr(routing, "_walk", lambda *args: walks.append(args) or walk(*args))
    packs, choices = memory_packs(kernel(), kernel(features=("bias",)), kernel(head_dim=128)), {}
    for length in (600, 700, 800):
        changes = [{}, {"mask_kind": "boolean"}, {"head_dim": 128, "value_dim": 128}, {"dropout_p": 0.5}]
        for change in changes:
            decided = route(problem(kv_len=length, **change), H200, None, packs, Gates.open(), choices)
            assert decided == route(problem(kv_len=length, **change), H200, None, packs, Gates.open())
    assert len(walks) == 4 + 3 * 4
