"""Selection -> variants: complete, unique, in a fixed order."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest
from build_tree import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st

from ffpa_build.codegen import generate
from ffpa_build.errors import SelectionError
from ffpa_build.matrix import expand, feature_sets, shard
from ffpa_build.model import HeadDims, Rule, Spec
from ffpa_build.pack import distribution_version
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec


def spec_with(spec: Spec, **changes: object) -> Spec:
    return replace(spec, impls=(replace(spec.impls[0], **changes),))  # type: ignore[arg-type]


PROJECT = load_spec(REPOSITORY)
FEATURED = spec_with(PROJECT, features=("bias", "bias32", "dropout"), exclusive=("bias", "bias32"), acc=("f32", "f16"))


@given(
    head_dims=st.sets(st.integers(1, 128).map(lambda n: 8 * n), min_size=1, max_size=5),
    archs=st.sets(st.sampled_from(tuple(PROJECT.archs)), min_size=1),
    stages=st.sets(st.sampled_from(FEATURED.stages), min_size=1),
    features=st.sets(st.sampled_from(FEATURED.features)),
    dtypes=st.sets(st.sampled_from(("bf16", "fp16")), min_size=1),
)
def test_matrix_is_the_product_of_its_axes(
    head_dims: set[int], archs: set[str], stages: set[int], features: set[str], dtypes: set[str]
) -> None:
    selection = Selection.make(
        FEATURED,
        archs=list(archs),
        head_dims=list(head_dims),
        stages=list(stages),
        features=list(features),
        dtypes=list(dtypes),
        acc="f32",
    )
    variants = expand(FEATURED, selection).variants
    sets = [chosen for chosen in feature_sets(FEATURED.impls[0], FEATURED.features) if set(chosen) <= features]
    assert len(variants) == len(archs) * len(head_dims) * len(stages) * len(sets) * len(dtypes)
    assert len({variant.id for variant in variants}) == len(variants)
    assert len({variant.entry for variant in variants}) == len(variants)
    for variant in variants:
        assert re.fullmatch(r"native\.split_d-sm_\d+[af]?-(bf16|fp16)-d\d+-s\d(-bias|-bias32)?(-dropout)?", variant.id)
        assert re.fullmatch(r"\w+", variant.entry)


@given(count=st.integers(1, 12))
def test_shards_partition_the_matrix(count: int) -> None:
    variants = expand(PROJECT, Selection.make(PROJECT)).variants
    parts = [shard(variants, index, count) for index in range(1, count + 1)]
    assert sorted(v.id for part in parts for v in part) == sorted(v.id for v in variants)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("part", [(0, 2), (3, 2), (1, 0)])
def test_shard_outside_the_range_is_rejected(part: tuple[int, int]) -> None:
    with pytest.raises(SelectionError, match="shard"):
        shard((), *part)


def test_feature_sets_leave_out_exclusive_pairs() -> None:
    impl = FEATURED.impls[0]
    assert feature_sets(impl, ("bias", "bias32", "dropout")) == [
        (),
        ("bias",),
        ("bias32",),
        ("dropout",),
        ("bias", "dropout"),
        ("bias32", "dropout"),
    ]
    assert feature_sets(impl, ()) == [()]


def test_named_head_dims() -> None:
    assert Selection.make(PROJECT, head_dims="default").head_dims == (64, 128, 192, 256, 320, 512)
    assert Selection.make(PROJECT, head_dims="all").head_dims == (64, 128, 192, 256, 320, 512, 768)
    assert Selection.make(PROJECT, head_dims="default,1024,8").head_dims == (8, 64, 128, 192, 256, 320, 512, 1024)


def test_f16_accumulation_is_for_fp16_only_and_named() -> None:
    selection = Selection.make(
        FEATURED, archs="sm_89", head_dims="64", stages="2", dtypes="all", acc="all", features="none"
    )
    matrix = expand(FEATURED, selection)
    assert [variant.id for variant in matrix.variants] == [
        "native.split_d-sm_89-bf16-d64-s2",
        "native.split_d-sm_89-fp16-d64-s2",
        "native.split_d-sm_89-fp16-d64-s2-accf16",
    ]
    assert any("bf16 always accumulates" in skip.reason for skip in matrix.skips)


def test_unsupported_values_are_skipped_with_a_reason() -> None:
    spec = spec_with(PROJECT, head_dim=HeadDims(64, 256, 64), archs=("sm_89",))
    matrix = expand(spec, Selection.make(spec, head_dims="64,320", stages="2", features="none"))
    assert [variant.id for variant in matrix.variants] == ["native.split_d-sm_89-bf16-d64-s2"]
    reasons = {(skip.arch, skip.what): skip.reason for skip in matrix.skips}
    assert reasons["sm_89", "d320"] == "head dims: multiples of 64 in 64..256"
    assert reasons["sm_80", "every variant"] == "compiles for sm_89"


def test_skip_rule_leaves_variants_out_with_its_reason() -> None:
    rule = Rule(reason="four stages do not fit", archs=("sm_89",), stages=(4,), head_dim=HeadDims(512, 1024, 8))
    spec = spec_with(PROJECT, skip=(rule,))
    matrix = expand(spec, Selection.make(spec, archs="sm_89,sm_80", head_dims="64,512", stages="4", features="none"))
    assert [variant.id for variant in matrix.variants] == [
        "native.split_d-sm_80-bf16-d64-s4",
        "native.split_d-sm_80-bf16-d512-s4",
        "native.split_d-sm_89-bf16-d64-s4",
    ]
    assert [(skip.what, skip.reason) for skip in matrix.skips] == [
        ("native.split_d-sm_89-bf16-d512-s4", "four stages do not fit")
    ]


def test_no_kernel_of_the_project_may_spill() -> None:
    assert {impl.id: impl.spills for impl in PROJECT.impls if impl.spills} == {}


def test_emulated_variants_keep_their_design_and_change_their_target() -> None:
    variants = expand(PROJECT, Selection.make(PROJECT, "emulated")).variants
    by_id = {variant.id: variant for variant in variants}
    variant = by_id["native.split_d-sm_120f-bf16-d64-s3-for_sm_90a"]
    assert variant.target.name == "sm_90a"
    assert variant.pack == "sm120"
    assert all(variant.emulated for variant in variants)
    source = generate(variant)
    assert "kArch = 1200;" in source
    assert f"kSmemBlock = {99 * 1024};" in source


def test_generated_source_states_the_variant() -> None:
    selection = Selection.make(
        FEATURED, archs="90", head_dims="72", stages="3", dtypes="fp16", acc="f16", features="all"
    )
    sources = {variant.id: generate(variant) for variant in expand(FEATURED, selection).variants}
    source = sources["native.split_d-sm_90a-fp16-d72-s3-accf16-bias32-dropout"]
    for line in (
        '#include "kernels/native/split_d.cuh"',
        "static constexpr int kArch = 900;",
        f"static constexpr int kSmemBlock = {227 * 1024};",
        "using Element = ffpa::fp16;",
        "static constexpr bool kAccF16 = true;",
        "static constexpr int kHeadDim = 72;",
        "static constexpr int kStages = 3;",
        "static constexpr bool kBias = false;",
        "static constexpr bool kBiasF32 = true;",
        "static constexpr bool kDropout = true;",
        "FFPA_KERNEL(native_split_d_sm_90a_fp16_d72_s3_accf16_bias32_dropout, ffpa::native::SplitD<Variant>)",
    ):
        assert line in source


def test_of_two_impls_that_serve_one_call_the_tables_say_which_comes_first() -> None:
    for arch in PROJECT.archs:
        here = [impl for impl in PROJECT.impls if arch in impl.archs]
        for one, other in combinations(here, 2):
            head_dims = [d for d in range(8, 1025, 8) if d in one.head_dim and d in other.head_dim]
            if one.ext == other.ext and set(one.problems) & set(other.problems) and head_dims:
                assert (one.order, one.row_cost) != (other.order, other.row_cost), (arch, one.id, other.id)


def test_rank_is_the_place_in_the_arch_order() -> None:
    variants = expand(PROJECT, Selection.make(PROJECT, archs="sm_80,sm_90a")).variants
    ranks = {(variant.arch.name, variant.impl.ext): variant.rank for variant in variants}
    known = {("sm_80", "native"): 0, ("sm_90a", "hopper"): 0, ("sm_90a", "tma"): 1, ("sm_90a", "native"): 2}
    assert {key: ranks[key] for key in known} == known
    assert {rank for key, rank in ranks.items() if key not in known} <= {-1}
    hinted = spec_with(PROJECT, ext="fp8")
    assert {v.rank for v in expand(hinted, Selection.make(hinted)).variants} == {-1}


@pytest.mark.parametrize(
    ("archs", "pack", "version"),
    [
        ("all", "core", ""),
        ("all", None, ""),
        ("sm_89", "core", "+sm89"),
        ("sm_89,sm_80", "core", "+sm80.sm89"),
        ("sm_80,sm_89,sm_90a,sm_100f", "core", ""),
        ("sm_89,sm_120f", "sm120", ""),
        ("sm_89,sm_120f", None, "+sm89.sm120f"),
    ],
)
def test_restricted_builds_carry_a_local_label(archs: str, pack: str | None, version: str) -> None:
    assert distribution_version(PROJECT, Selection.make(PROJECT, archs=archs), pack) == PROJECT.version + version


def test_emulated_builds_carry_a_label_of_their_own() -> None:
    selection = Selection.make(PROJECT, "emulated")
    assert distribution_version(PROJECT, selection, "sm120").endswith("+emulated.sm120f.for.sm90a")


def test_what_launches_after_a_kernel_comes_along_whatever_the_selection_names() -> None:
    main = replace(PROJECT.impls[0], name="main", problems=("decode",), needs=("after",))
    after = replace(
        PROJECT.impls[0],
        name="after",
        problems=("merge",),
        head_dim=HeadDims(8, 8, 8, (1024,)),
        stages=(2,),
        features=(),
    )
    spec = replace(PROJECT, impls=(main, after))
    selection = Selection.make(spec, archs="sm_89,sm_90a", head_dims="64,128", stages="3", dtypes="all", features="all")
    variants = expand(spec, selection).variants
    followers = sorted(variant.id for variant in variants if variant.impl == after)
    assert followers == [
        f"native.after-{arch}-{dtype}-d1024-s2" for arch in ("sm_89", "sm_90a") for dtype in ("bf16", "fp16")
    ]
    assert all(variant.pack == "core" for variant in variants)
    alone = replace(PROJECT, impls=(replace(main, needs=()), after))
    assert not [v for v in expand(alone, selection).variants if v.impl == after]


def test_a_kernel_with_one_depth_is_built_whatever_stages_are_named() -> None:
    fixed = replace(PROJECT.impls[0], name="fixed", stages=(3,))
    spec = replace(PROJECT, impls=(fixed, replace(PROJECT.impls[0], stages=(2, 3))))
    matrix = expand(spec, Selection.make(spec, archs="sm_89", head_dims="64", stages="2", features="none"))
    assert [variant.id for variant in matrix.variants] == [
        "native.fixed-sm_89-bf16-d64-s3",
        "native.split_d-sm_89-bf16-d64-s2",
    ]
    assert not matrix.skips
