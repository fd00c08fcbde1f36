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


def estimator(sample: Sequence[Variant], known: Entries) -> Callable[[Variant], float | None]:
    """From a variant to the CPU time of its compile, in seconds, by the kernels of `sample` that are known."""
    groups: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for variant in sample:
        if variant.id in known and known[variant.id].cpu_seconds:
            key = (variant.impl.id, variant.target.name)
            groups.setdefault(key, []).append((variant.head_dim, known[variant.id].cpu_seconds))

    def estimate(variant: Variant) -> float | None:
        points = groups.get((variant.impl.id, variant.target.name))
        if points is None:
            return None
        dims, seconds = zip(*points, strict=True)
        if len(set(dims)) == 1:
            return statistics.fmean(seconds)
        slope, start = statistics.linear_regression(dims, seconds)
        # Nothing is faster than the fastest seen, as a line might say below the smallest head dim.
        return max(start + slope * variant.head_dim, min(seconds))

    return estimate


@dataclass(frozen=True)
class Row:
    """Kernels of a pack, for one arch or (None) for all.

    `known` of them are in the cache with their time: `seconds` in all, their cubins `size` bytes. `estimate` is of all
    kernels, None where one of them cannot be estimated.
    """

    pack: str
    arch: str | None
    kernels: int
    known: int
    estimate: float | None
    seconds: float
    size: int


def rows(variants: Sequence[Variant], known: Entries, estimate: Callable[[Variant], float | None]) -> list[Row]:
    """A row for each arch of each pack and one for the pack, in the order of the plan."""

    def row(pack: str, arch: str | None, of: list[Variant]) -> Row:
        guesses = [estimate(variant) for variant in of]
        total = None if None in guesses else sum(guess for guess in guesses if guess is not None)
        have = [known[variant.id] for variant in of if variant.id in known and known[variant.id].cpu_seconds]
        size = sum(entry.facts.size for entry in have)
        return Row(pack, arch, len(of), len(have), total, sum(entry.cpu_seconds for entry in have), size)

    found = []
    for pack in dict.fromkeys(variant.pack for variant in variants):
        mine = [variant for variant in variants if variant.pack == pack]
        for arch in dict.fromkeys(variant.arch.name for variant in mine):
            found.append(row(pack, arch, [variant for variant in mine if variant.arch.name == arch]))
        found.append(row(pack, None, mine))
    return found


def plan_table(spec: Spec, found: Sequence[Row], wheels: Path | None = None) -> str:
    """Markdown of `rows`. `wheels` is a folder of wheels, whose sizes are put beside those of their packs."""
    lines = [
        "| pack | arch | kernels | estimated CPU s | measured CPU s | of kernels | cubins MB | wheel MB | budget MB |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in found:
        pack = spec.packs[row.pack]
        wheel = budget = ""
        if row.arch is None:
            wheel, budget = _wheel_mb(wheels, pack.distribution), str(pack.wheel_mb)
        estimate = "unknown" if row.estimate is None else f"{row.estimate:.0f}"
        measured = f"{row.seconds:.0f} | {row.known} | {row.size / 1e6:.1f}" if row.known else "| 0 |"
        cells = (pack.distribution, row.arch or "all", row.kernels, estimate, measured, wheel, budget)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


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
