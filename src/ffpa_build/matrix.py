"""Selection -> variants. Pure functions; the order of the result is fixed by the tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from ffpa_build.errors import SelectionError
from ffpa_build.model import Arch, Impl, Spec
from ffpa_build.selection import Selection


@dataclass(frozen=True)
class Variant:
    """One translation unit and one cubin.

    `arch` is what the kernel is designed for; `target` is what it is compiled for, another one if emulated.
    """

    impl: Impl
    arch: Arch
    target: Arch
    dtype: str
    acc: str
    head_dim: int
    stages: int
    features: tuple[str, ...]
    pack: str

    @property
    def emulated(self) -> bool:
        return self.arch.name != self.target.name

    @property
    def id(self) -> str:
        parts = [self.impl.id, self.arch.name, self.dtype, f"d{self.head_dim}", f"s{self.stages}"]
        if self.acc == "f16":
            parts.append("accf16")
        parts += self.features
        if self.emulated:
            parts.append(f"for_{self.target.name}")
        return "-".join(parts)

    @property
    def entry(self) -> str:
        """The kernel's symbol."""
        return self.id.replace(".", "_").replace("-", "_")

    @property
    def rank(self) -> int:
        """Place of the kernel's ext in its arch's `auto` list; -1: never taken without a hint."""
        auto = self.arch.auto
        return auto.index(self.impl.ext) if self.impl.ext in auto else -1


@dataclass(frozen=True)
class Skip:
    """Part of a selection that yields no variant, and why."""

    impl: str
    arch: str
    what: str
    reason: str


@dataclass(frozen=True)
class Matrix:
    """The variants of a selection, with what was left out."""

    variants: tuple[Variant, ...]
    skips: tuple[Skip, ...]


def feature_sets(impl: Impl, selected: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every subset of the impl's selected features without two exclusive ones; the plain kernel comes first."""
    available = [feature for feature in impl.features if feature in selected]
    return [
        subset
        for size in range(len(available) + 1)
        for subset in combinations(available, size)
        if sum(feature in impl.exclusive for feature in subset) <= 1
    ]


def expand(spec: Spec, selection: Selection, empty: bool = False) -> Matrix:
    """The variants of a selection. Raises SelectionError if there is none, unless `empty` allows that."""
    variants: list[Variant] = []
    skips: list[Skip] = []
    for impl in spec.impls:
        if impl.ext not in selection.exts or impl.problems == ("merge",):
            continue
        if impl.opt_in and impl.opt_in not in selection.opt_in:
            skips += [Skip(impl.id, arch, "every variant", f"needs opt_in {impl.opt_in}") for arch in selection.archs]
            continue
        for arch_name in selection.emulate or selection.archs:
            targets = selection.archs if selection.emulate else (arch_name,)
            if arch_name not in impl.archs:
                skips.append(Skip(impl.id, arch_name, "every variant", f"compiles for {', '.join(impl.archs)}"))
                continue
            pack = spec.pack_of(impl.family, arch_name).name
            if pack not in selection.packs:
                skips.append(Skip(impl.id, arch_name, "every variant", f"pack {pack} is not selected"))
                continue
            skips += _unsupported(impl, arch_name, selection)
            for target in targets:
                for item in _expand_impl(spec, impl, spec.archs[arch_name], spec.archs[target], pack, selection):
                    if isinstance(item, Variant):
                        variants.append(item)
                    else:
                        skips.append(item)
    variants += _followers(spec, variants)
    if not variants and not empty:
        reasons = "; ".join(dict.fromkeys(f"{s.impl} {s.arch}: {s.what}: {s.reason}" for s in skips))
        raise SelectionError(f"the selection is empty: {reasons or 'ext = none: no kernels'}")
    return Matrix(tuple(variants), tuple(skips))


def _followers(spec: Spec, variants: list[Variant]) -> list[Variant]:
    """What the variants need to run after them: one variant of each needed impl for each arch, target and dtype.

    A selection names no head dims and stages of these: they serve every head dim, and have one depth.
    """
    impls = {impl.id: impl for impl in spec.impls}
    found: dict[tuple[str, str, str, str], Variant] = {}
    for variant in variants:
        for name in variant.impl.needs:
            impl = impls[f"{variant.impl.family}.{name}"]
            key = (impl.id, variant.arch.name, variant.target.name, variant.dtype)
            if key not in found:
                found[key] = replace(
                    variant, impl=impl, acc="f32", head_dim=impl.head_dim.largest, stages=impl.stages[0], features=()
                )
    return list(found.values())


def _unsupported(impl: Impl, arch: str, selection: Selection) -> Iterator[Skip]:
    for head_dim in selection.head_dims:
        if head_dim not in impl.head_dim:
            yield Skip(impl.id, arch, f"d{head_dim}", f"head dims: {impl.head_dim}")
    for stage in selection.stages:
        if stage not in impl.stages and len(impl.stages) > 1:
            yield Skip(impl.id, arch, f"s{stage}", f"stages: {', '.join(map(str, impl.stages))}")
    for dtype in selection.dtypes:
        if dtype not in impl.dtypes:
            yield Skip(impl.id, arch, dtype, f"dtypes: {', '.join(impl.dtypes)}")
    for acc in selection.acc:
        if acc not in impl.acc:
            yield Skip(impl.id, arch, f"acc {acc}", f"acc: {', '.join(impl.acc)}")
        elif acc == "f16" and "bf16" in selection.dtypes and "bf16" in impl.dtypes:
            yield Skip(impl.id, arch, "bf16 acc f16", "bf16 always accumulates in f32")


def _depths(impl: Impl, selection: Selection) -> tuple[int, ...]:
    """The pipeline depths to build. An impl with one depth has it whatever the selection names: it offers no choice."""
    return impl.stages if len(impl.stages) == 1 else tuple(s for s in impl.stages if s in selection.stages)


def _expand_impl(
    spec: Spec, impl: Impl, arch: Arch, target: Arch, pack: str, selection: Selection
) -> Iterator[Variant | Skip]:
    for dtype in (dtype for dtype in impl.dtypes if dtype in selection.dtypes):
        for acc in (acc for acc in impl.acc if acc in selection.acc):
            if dtype == "bf16" and acc == "f16":
                continue
            for head_dim in (head_dim for head_dim in selection.head_dims if head_dim in impl.head_dim):
                for stages in _depths(impl, selection):
                    for features in feature_sets(impl, selection.features):
                        variant = Variant(impl, arch, target, dtype, acc, head_dim, stages, features, pack)
                        reason = next(
                            (
                                rule.reason
                                for rule in impl.skip
                                if rule.matches(arch.name, dtype, acc, head_dim, stages, features)
                            ),
                            None,
                        )
                        yield variant if reason is None else Skip(impl.id, arch.name, variant.id, reason)


def shard(variants: tuple[Variant, ...], index: int, count: int) -> tuple[Variant, ...]:
    """Part `index` of `count` (from 1): disjoint, together everything. Raises SelectionError."""
    if not 1 <= index <= count:
        raise SelectionError(f"shard = '{index}/{count}': allowed: i/n with 1 <= i <= n")
    return variants[index - 1 :: count]
