"""What kernels cost to compile, as the cache has it: time, size, registers. Tables in Markdown; nothing is compiled.

Times are of the processor, so that a busy machine and other compiles at once change them little. A kernel that the
cache does not have is estimated from those that it has: of the same implementation and compile target, on a line
through their times by head dim.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ffpa_build.build import unit_of
from ffpa_build.cache import Cache, Entry
from ffpa_build.includes import Sources
from ffpa_build.inspect_wheel import Wheel
from ffpa_build.matrix import Variant
from ffpa_build.model import Spec, ToolchainSpec
from ffpa_build.toolchain import locate

Entries = Mapping[str, Entry]
"""Compiled kernels, by id."""


def entries(spec: Spec, variants: Iterable[Variant], declared: ToolchainSpec, cache_dir: Path) -> Entries:
    """Those of `variants` that are in the cache."""
    cache, sources, toolchain = Cache(cache_dir), Sources(spec.csrc), locate(declared, cache_dir)
    found = ((variant.id, cache.load(unit_of(variant, sources, toolchain).key)) for variant in variants)
    return {name: entry for name, entry in found if entry is not None}


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU time and bytes of cubins."""

    seconds: float
    size: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.size + other.size)


Estimate = Callable[[Variant], "Cost | None"]


def estimator(sample: Sequence[Variant], known: Entries) -> Estimate:
    """From a variant to what its compile costs, by the kernels of `sample` that are known; None: it cannot be said."""
    groups: dict[tuple[str, str], list[tuple[int, Cost]]] = {}
    for variant in sample:
        cost = _cost(variant, known)
        if cost is not None:
            groups.setdefault((variant.impl.id, variant.target.name), []).append((variant.head_dim, cost))

    def estimate(variant: Variant) -> Cost | None:
        points = groups.get((variant.impl.id, variant.target.name))
        if points is None:
            return None
        dims = [dim for dim, _ in points]
        seconds = _on_line(dims, [cost.seconds for _, cost in points], variant.head_dim)
        return Cost(seconds, _on_line(dims, [cost.size for _, cost in points], variant.head_dim))

    return estimate


def _on_line(at: Sequence[int], values: Sequence[float], where: int) -> float:
    if len(set(at)) == 1:
        return statistics.fmean(values)
    slope, start = statistics.linear_regression(at, values)
    # Nothing is below the least that was seen, as a line might say of small head dims.
    return max(start + slope * where, min(values))


def _cost(variant: Variant, known: Entries) -> Cost | None:
    entry = known.get(variant.id)
    # Earlier builds did not note the CPU time.
    return Cost(entry.cpu_seconds, entry.facts.size) if entry is not None and entry.cpu_seconds else None


@dataclass(frozen=True)
class Row:
    """Kernels of a pack, for one arch or (None) for all.

    `known` of them are in the cache with their time, and `measured` is the cost of these. `estimate` is of all kernels,
    None where one of them cannot be estimated.
    """

    pack: str
    arch: str | None
    kernels: int
    estimate: Cost | None
    known: int
    measured: Cost


def rows(variants: Sequence[Variant], known: Entries, estimate: Estimate) -> list[Row]:
    """A row for each arch of each pack and one for the pack, in the order of the plan."""

    def row(pack: str, arch: str | None, of: list[Variant]) -> Row:
        guesses = [guess for guess in map(estimate, of) if guess is not None]
        have = [cost for cost in (_cost(variant, known) for variant in of) if cost is not None]
        total = sum(guesses, Cost(0, 0)) if len(guesses) == len(of) else None
        return Row(pack, arch, len(of), total, len(have), sum(have, Cost(0, 0)))

    found = []
    for pack in dict.fromkeys(variant.pack for variant in variants):
        mine = [variant for variant in variants if variant.pack == pack]
        for arch in dict.fromkeys(variant.arch.name for variant in mine):
            found.append(row(pack, arch, [variant for variant in mine if variant.arch.name == arch]))
        found.append(row(pack, None, mine))
    return found


def plan_table(spec: Spec, found: Sequence[Row], wheels: Path | None = None) -> str:
    """Markdown of `rows`. `wheels` is a folder of wheels, whose sizes are put beside those of their packs."""
    head = "| pack | arch | kernels | estimated CPU s | MB | measured kernels | CPU s | MB | wheel MB | budget MB |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    for row in found:
        pack = spec.packs[row.pack]
        wheel = budget = ""
        if row.arch is None:
            wheel, budget = _wheel_mb(wheels, pack.distribution), str(pack.wheel_mb)
        estimate, measured = _cells(row.estimate), _cells(row.measured if row.known else None)
        cells = (pack.distribution, row.arch or "all", row.kernels, *estimate, row.known, *measured, wheel, budget)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _cells(cost: Cost | None) -> tuple[str, str]:
    return ("-", "-") if cost is None else (f"{cost.seconds:.0f}", f"{cost.size / 1e6:.1f}")


def _wheel_mb(folder: Path | None, distribution: str) -> str:
    if folder is None:
        return ""
    mine = [path for path in sorted(folder.glob("*.whl")) if Wheel.read(path).name == distribution]
    return ", ".join(f"{path.stat().st_size / 1e6:.1f}" for path in mine)


def compiler_table(variants: Sequence[Variant], first: Entries, second: Entries) -> str:
    """Markdown: what the second compiler makes of the kernels that both have, against the first, a line each impl."""
    head = "| impl | arch | kernels | cubin size | registers: fewer, same, more | from, to | spill bytes |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    both = [variant for variant in variants if variant.id in first and variant.id in second]
    groups = dict.fromkeys((variant.impl.id, variant.arch.name) for variant in both)
    for impl, arch in [*groups, ("all", "")]:
        of = [v.id for v in both if impl == "all" or (v.impl.id, v.arch.name) == (impl, arch)]
        if not of:
            continue
        pairs = [(first[name], second[name]) for name in of]
        sizes = [sum(entry.facts.size for entry in side) for side in zip(*pairs, strict=True)]
        steps = [b.facts.registers - a.facts.registers for a, b in pairs]
        spills = [sum(entry.facts.spill_bytes for entry in side) for side in zip(*pairs, strict=True)]
        counts = f"{sum(s < 0 for s in steps)}, {sum(s == 0 for s in steps)}, {sum(s > 0 for s in steps)}"
        span = f"{min(steps):+d}, {max(steps):+d}"
        cells = (impl, arch, len(of), f"{sizes[1] / sizes[0]:.3f}", counts, span)
        lines.append(f"| {' | '.join(map(str, cells))} | {spills[0]}, {spills[1]} |")
    return "\n".join(lines) + "\n"
