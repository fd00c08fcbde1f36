"""What `plan` accepts compiles: every pair of values of two axes is in a sample that is really compiled."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest
from build_tree import REPOSITORY

from ffpa_build.build import build_variants
from ffpa_build.matrix import Variant, expand
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec

PROJECT = load_spec(REPOSITORY)
EVERYTHING = dict.fromkeys(("archs", "ext", "stages", "dtypes", "acc", "features", "opt_in"), "all")
CI_HEAD_DIMS = "72,256,296,448,512,976"
ALL_HEAD_DIMS = "8,64,72,128,192,256,296,320,448,512,640,768,784,976,1024"

Row = tuple[object, ...]


def row_of(variant: Variant) -> Row:
    """The values of the axes. The impl stands for its ext: an ext of two impls must compile with both."""
    return (
        variant.impl.id,
        variant.arch.name,
        variant.dtype,
        variant.acc,
        variant.features,
        variant.stages,
        variant.head_dim,
    )


def pairs_of(row: Row) -> frozenset[tuple[object, ...]]:
    return frozenset((i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2))


def all_pairs(variants: Iterable[Variant]) -> set[tuple[object, ...]]:
    return {pair for variant in variants for pair in pairs_of(row_of(variant))}


def sample(head_dims: str) -> list[Variant]:
    """Greedy cover of the pairs by variants that plan accepts.

    A generator of covering arrays would have to know which combinations the tables rule out (an impl's archs, bf16 with
    f16 accumulators, skip rules); here the accepted variants say it.
    """
    matrix = expand(PROJECT, Selection.make(PROJECT, head_dims=head_dims, **EVERYTHING))
    left = {variant: set(pairs_of(row_of(variant))) for variant in matrix.variants}
    chosen = []
    while left:
        best = max(left, key=lambda variant: len(left[variant]))  # of equals, the first in the matrix
        chosen.append(best)
        covered = left.pop(best)
        for pairs in left.values():
            pairs -= covered
        left = {variant: pairs for variant, pairs in left.items() if pairs}
    return chosen


@pytest.mark.parametrize("head_dims", [CI_HEAD_DIMS, ALL_HEAD_DIMS])
def test_the_sample_has_every_pair_that_plan_accepts(head_dims: str) -> None:
    accepted = expand(PROJECT, Selection.make(PROJECT, head_dims=head_dims, **EVERYTHING)).variants
    chosen = sample(head_dims)
    assert all_pairs(chosen) == all_pairs(accepted)
    assert len(chosen) < len(accepted) / 4


@pytest.mark.parametrize("head_dims", [CI_HEAD_DIMS, pytest.param(ALL_HEAD_DIMS, marks=pytest.mark.slow)])
def test_every_pair_of_flags_compiles(head_dims: str, cache: Path) -> None:
    variants = sample(head_dims)
    report = build_variants(PROJECT, variants, PROJECT.default_toolchain, cache, quiet=True)
    failures = [f"{failure.variant.id}: {failure.reason}" for failure in report.failures]
    assert failures == []
    assert [built.variant for built in report.built] == variants
    assert report.compiled == len(variants)
