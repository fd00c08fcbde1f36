"""The tables of what kernels cost: from the cache, and estimated where it has nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ffpa_build import costs
from ffpa_build.api import Selection, build_report, expand, load_spec
from ffpa_build.cli import main
from ffpa_build.matrix import Variant


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def variants(tree: Path) -> tuple[Variant, ...]:
    """Two archs, four head dims."""
    spec = load_spec(tree)
    return tuple(expand(spec, Selection.make(spec, head_dims="64,128,256,512")).variants)


@pytest.fixture
def known(tree: Path, cache: Path, variants: tuple[Variant, ...]) -> costs.Entries:
    """The Ada kernels of the first two head dims, with compile times of one and two seconds."""
    spec = load_spec(tree)
    selection = Selection.make(spec, head_dims="64,128", archs="89")
    built = build_report(selection, spec=spec, cache_dir=cache, jobs=1, quiet=True).built
    return {row.variant.id: replace(row.entry, cpu_seconds=row.variant.head_dim / 64) for row in built}


def test_an_estimate_is_on_the_line_through_what_is_known(variants: tuple[Variant, ...], known: costs.Entries) -> None:
    def seconds(estimate: costs.Estimate, variant: Variant) -> float | None:
        cost = estimate(variant)
        return None if cost is None else cost.seconds

    estimate = costs.estimator(variants, known)
    ada = [variant for variant in variants if variant.arch.name == "sm_89"]
    assert [seconds(estimate, variant) for variant in ada] == pytest.approx([1, 2, 4, 8])
    assert seconds(estimate, replace(ada[0], head_dim=8)) == 1  # not below what was seen
    sizes = [known[variant.id].facts.size for variant in ada[:2]]
    cost = estimate(ada[2])
    assert cost is not None and cost.size == pytest.approx(max(min(sizes), 3 * sizes[1] - 2 * sizes[0]))
    hopper = next(variant for variant in variants if variant.arch.name == "sm_90a")
    assert estimate(hopper) is None
    untimed = {name: replace(entry, cpu_seconds=0.0) for name, entry in known.items()}  # as old builds left them
    assert costs.estimator(variants, untimed)(ada[0]) is None
    assert costs.rows(variants, untimed, estimate)[0].known == 0
    alone = costs.estimator(variants, {ada[1].id: known[ada[1].id]})
    assert seconds(alone, ada[3]) == 2
    assert costs.estimator(ada[3:], known)(ada[0]) is None  # a sample of which nothing is known


def test_a_row_says_how_much_of_it_is_measured(tree: Path, variants: tuple[Variant, ...], known: costs.Entries) -> None:
    found = costs.rows(variants, known, costs.estimator(variants, known))
    assert [(row.pack, row.arch, row.kernels, row.known) for row in found] == [
        ("core", "sm_89", 4, 2),
        ("core", None, 4, 2),
        ("extra", "sm_90a", 4, 0),
        ("extra", None, 4, 0),
    ]
    whole = found[1]
    size = sum(entry.facts.size for entry in known.values())
    assert whole.measured == costs.Cost(3, size)
    assert whole.estimate is not None and whole.estimate.seconds == pytest.approx(15)
    text = costs.plan_table(load_spec(tree), found)
    line = f"| ffpa-core | all | 4 | 15 | {whole.estimate.size / 1e6:.1f} | 2 | 3 | {size / 1e6:.1f} |  | 100 |"
    assert line in text.splitlines()
    assert "| ffpa-extra | sm_90a | 4 | - | - | 0 | - | - |  |  |" in text.splitlines()
    assert len({line.count("|") for line in text.splitlines()}) == 1


def test_two_compilers_are_compared_by_what_both_made(variants: tuple[Variant, ...], known: costs.Entries) -> None:
    def other(entry: costs.Entry, registers: int) -> costs.Entry:
        facts = replace(entry.facts, registers=entry.facts.registers + registers, size=2 * entry.facts.size)
        return replace(entry, facts=replace(facts, spill_bytes=8))

    (first, second) = known
    theirs = {first: other(known[first], -2), second: other(known[second], 1), "unknown": known[first]}
    text = costs.compiler_table(variants, known, theirs)
    for name in ("| tiny.copy | sm_89 |", "| all |  |"):
        assert f"{name} 2 | 2.000 | 1, 0, 1 | -2, +1 | 0, 16 |" in text
    assert costs.compiler_table(variants, known, {}).count("\n") == 2


def test_the_command_prints_what_the_cache_has(tree: Path, cache: Path) -> None:
    options = ("plan", "--root", tree, "--cache-dir", cache, "--table")
    assert "| ffpa-core | all | 1 | - | - | 0 | - | - |  | 100 |" in call(*options).output
    assert call("build", "--root", tree, "--cache-dir", cache, "-q", "--out", tree / "out").exit_code == 0
    (line,) = [line for line in call(*options).output.splitlines() if line.startswith("| ffpa-core | all |")]
    kernels, *estimate, number, seconds, size = line.split(" | ")[2:8]
    assert (kernels, number) == ("1", "1") and estimate == [seconds, size]
    sampled = call(*options, "--headdim", "64,128", "--sample", "default", "--wheels", tree)
    assert "| ffpa-core | all | 2 | " in sampled.output and sampled.exit_code == 0
    against = call(*options, "--against", "nvrtc-12.9")
    assert "| tiny.copy | sm_89 | 1 | 1.000 | 0, 1, 0 | +0, +0 | 0, 0 |" in against.output


@pytest.mark.parametrize(
    "options, message",
    [
        (("--sample", "default"), "--sample, --wheels and --against go with --table"),
        (("--table", "--sample", "nothing"), "preset = 'nothing'"),
        (("--table", "--against", "gcc"), "toolchain = 'gcc': allowed: "),
        (("--table", "--against", "nvrtc-13.0", "--sample", "default"), "--against compares kernels"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    tree: Path, cache: Path, options: tuple[str, ...], message: str
) -> None:
    result = call("plan", "--root", tree, "--cache-dir", cache, *options)
    assert result.exit_code == 2
    assert message in result.output
