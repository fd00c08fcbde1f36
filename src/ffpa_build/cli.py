"""The command line: `python -m ffpa_build plan | build | install | show | verify | clean`.

Imports what a command needs when it runs, so that `plan` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ffpa_build.environment import Settings, settings
from ffpa_build.errors import BuildError, SelectionError
from ffpa_build.find import find_variant
from ffpa_build.flags import BUILD, INSTALL, SELECTION, Flag, flag, group
from ffpa_build.matrix import Matrix, Variant, expand, shard
from ffpa_build.model import Spec
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec

if TYPE_CHECKING:
    from ffpa_build.build import BuildReport, Failure

Command = TypeVar("Command", bound=Callable[..., Any])


def _from_table(*flags: Flag) -> tuple[Callable[[Command], Command], ...]:
    """The options of rows of the table; what is not given is None, so that a variable can say it."""
    options = []
    for row in flags:
        if row.options:
            variable = f" [{row.variable}]" if row.variable else ""
            text = f"{row.help[0].upper()}{row.help[1:]}{variable}."
            kind: dict[str, Any] = {"metavar": row.metavar} if row.metavar else {"is_flag": True}
            options.append(click.option(*row.options, row.argument, help=text, **kind))
    return tuple(options)


_SELECTION_OPTIONS = _from_table(*group(SELECTION))
_BUILD_OPTIONS = _from_table(*group(BUILD))
_INSTALL_OPTIONS = _from_table(*group(INSTALL))
_CACHE, _TOOLCHAIN, _JOBS = _from_table(flag("cache"), flag("toolchain"), flag("jobs"))
_SHARD = click.option("--shard", "part", metavar="I/N", help="Only part I of N of the variants.")
_ROOT = click.option("--root", type=click.Path(path_type=Path), help="Source tree; default: the one around this file.")
_OUT = click.option("--out", type=click.Path(path_type=Path), help="Where packs go; default: build/packs.")
_COSTS = (
    click.option("--table", is_flag=True, help="Markdown: what packs cost to compile, by the kernels in the cache."),
    click.option("--sample", metavar="PRESET", help="With --table: estimate from the kernels of this preset alone."),
    click.option("--wheels", type=click.Path(path_type=Path), help="With --table: a folder of wheels to size."),
    click.option("--against", metavar="TOOLCHAIN", help="With --table: compare the kernels of two compilers instead."),
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def apply(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def _settings(spec: Spec, chosen: dict[str, Any]) -> Settings:
    """Options over variables; notices go to the user."""
    found = settings(spec, os.environ, chosen)
    for notice in found.notices:
        click.echo(f"note: {notice}", err=True)
    return found


def _matrix(spec: Spec, selection: Selection, part: str | None) -> Matrix:
    """A selection without kernels (`--ext none`) is asked for, not a mistake."""
    matrix = expand(spec, selection, empty=not selection.exts)
    return matrix if part is None else Matrix(shard(matrix.variants, *_parse_shard(part)), matrix.skips)


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise SelectionError(f"shard = {text!r}: allowed: i/n with 1 <= i <= n")
    return int(index), int(count)


class _Group(click.Group):
    """Turns the errors of this package and of the file system into one message and exit status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (BuildError, OSError) as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Builds the kernel packs of ffpa. Needs no GPU and no CUDA toolkit."""


@main.command()
@_options(*_SELECTION_OPTIONS, _SHARD, *_from_table(flag("toolchain"), flag("cache")), *_COSTS, _ROOT, _JSON)
def plan(
    root: Path | None,
    as_json: bool,
    part: str | None,
    table: bool,
    sample: str | None,
    wheels: Path | None,
    against: str | None,
    **chosen: Any,
) -> None:
    """Print what a selection builds, without building it."""
    spec = load_spec(root)
    found = _settings(spec, chosen)
    matrix = _matrix(spec, found.selection, part)
    if not table and (sample or wheels or against):
        raise SelectionError("--sample, --wheels and --against go with --table")
    if against and (sample or wheels):
        raise SelectionError("--against compares kernels; --sample and --wheels go without it")
    if table:
        click.echo(_cost_table(spec, found, matrix, sample, wheels, against), nl=False)
    elif as_json:
        click.echo(json.dumps(_plan_data(spec, found.selection, matrix), indent=1))
    else:
        _print_plan(spec, matrix)


def _cost_table(
    spec: Spec, found: Settings, matrix: Matrix, sample: str | None, wheels: Path | None, against: str | None
) -> str:
    from ffpa_build import costs
    from ffpa_build.cache import default_cache_dir
    from ffpa_build.toolchain import toolchain_spec

    folder = (found.cache or default_cache_dir()).resolve()
    known = costs.entries(spec, matrix.variants, found.toolchain, folder)
    if against is not None:
        other = costs.entries(spec, matrix.variants, toolchain_spec(spec, against), folder)
        return costs.compiler_table(matrix.variants, known, other)
    if sample is None:
        estimate = costs.estimator(matrix.variants, known)
    else:
        chosen = expand(spec, Selection.make(spec, sample)).variants
        estimate = costs.estimator(chosen, costs.entries(spec, chosen, found.toolchain, folder))
    return costs.plan_table(spec, costs.rows(matrix.variants, known, estimate), wheels)


def _print_plan(spec: Spec, matrix: Matrix) -> None:
    counts = Counter((variant.pack, variant.impl.id, variant.arch.name) for variant in matrix.variants)
    for pack in spec.packs.values():
        total = sum(count for (name, _, _), count in counts.items() if name == pack.name)
        if total:
            click.echo(f"{pack.name}  ({pack.distribution})  {total} kernels")
        for (name, impl, arch), count in counts.items():
            if name == pack.name:
                click.echo(f"  {impl:28} {arch:8} {count:5}   {_axes(matrix, impl, arch)}")
    click.echo(f"total: {len(matrix.variants)} kernels{'' if matrix.variants else ': runtime and launcher only'}")
    if matrix.skips:
        click.echo("left out:")
        for skip in matrix.skips:
            click.echo(f"  {skip.impl:28} {skip.arch:8} {skip.what}: {skip.reason}")


def _axes(matrix: Matrix, impl: str, arch: str) -> str:
    variants = [variant for variant in matrix.variants if variant.impl.id == impl and variant.arch.name == arch]

    def values(get: Callable[[Variant], object]) -> str:
        return ",".join(str(value) for value in dict.fromkeys(map(get, variants)))

    text = f"{values(lambda v: v.dtype)}  d {values(lambda v: v.head_dim)}  stages {values(lambda v: v.stages)}"
    if any(variant.features for variant in variants):
        text += f"  features {values(lambda v: '+'.join(v.features) or 'plain')}"
    if any(variant.emulated for variant in variants):
        text += f"  compiled for {values(lambda v: v.target.name)}"
    return text


def _plan_data(spec: Spec, selection: Selection, matrix: Matrix) -> dict[str, Any]:
    from ffpa_build.pack import distribution_version

    packs = dict.fromkeys(variant.pack for variant in matrix.variants)
    return {
        "versions": {pack: distribution_version(spec, selection, pack) for pack in packs},
        "kernels": [
            {
                "id": variant.id,
                "pack": variant.pack,
                "family": variant.impl.family,
                "impl": variant.impl.name,
                "arch": variant.arch.name,
                "target": variant.target.name,
                "dtype": variant.dtype,
                "acc": variant.acc,
                "head_dim": variant.head_dim,
                "stages": variant.stages,
                "features": list(variant.features),
            }
            for variant in matrix.variants
        ],
        "skipped": [vars(skip) for skip in matrix.skips],
    }


@main.command()
@_options(*_SELECTION_OPTIONS, _SHARD, *_BUILD_OPTIONS, _ROOT, _OUT, _JSON)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def build(
    root: Path | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    part: str | None,
    ptxas_verbose: bool,
    **chosen: Any,
) -> None:
    """Compile a selection and write its packs below build/packs. Exit status 1 if a kernel failed."""
    from ffpa_build.api import assemble_packs
    from ffpa_build.build import build_variants
    from ffpa_build.cache import default_cache_dir

    spec = load_spec(root)
    found = _settings(spec, chosen)
    matrix = _matrix(spec, found.selection, part)
    if not matrix.variants:
        click.echo("no kernels are selected, nothing is built")
        return
    report = build_variants(
        spec,
        matrix.variants,
        found.toolchain,
        found.cache or default_cache_dir(),
        found.jobs,
        quiet,
        found.nvcc_threads,
    )
    if ptxas_verbose:
        _print_ptxas(report)
    packs = assemble_packs(report, found.selection, out or spec.root / "build" / "packs", spec=spec)
    cached = len(matrix.variants) - report.compiled
    if as_json:
        data = {
            "compiled": report.compiled,
            "packs": {name: {"path": str(pack.path), "version": pack.version} for name, pack in packs.items()},
            "failures": [
                {"id": f.variant.id, "reason": f.reason, "log": f.log, "command": f.command} for f in report.failures
            ],
        }
        click.echo(json.dumps(data, indent=1))
    else:
        click.echo(f"{len(report.built)} kernels built ({report.compiled} compiled, {cached} from the cache)")
        for name, pack in packs.items():
            size = sum(kernel.size for kernel in pack.manifest.kernels)
            click.echo(f"  {name}: {pack.path}  {pack.version}  {len(pack.manifest.kernels)} kernels, {size >> 10} KiB")
    if report.failures:
        _print_failures(report.failures)
        sys.exit(1)


def _print_ptxas(report: BuildReport) -> None:
    for built in report.built:
        click.echo(f"{built.variant.id}\n{textwrap.indent(built.entry.log.strip(), '  ')}", err=True)


def _print_failures(failures: tuple[Failure, ...]) -> None:
    for failure in failures:
        click.echo(f"\n--- {failure.variant.id}\n{failure.reason}", err=True)
        if failure.log:
            click.echo(failure.log.rstrip(), err=True)
        if failure.command:
            click.echo(f"to repeat: {failure.command}", err=True)
    click.echo(f"\n{len(failures)} kernels failed; the packs that they belong to were not written:", err=True)
    for failure in failures:
        click.echo(f"  {failure.variant.id}", err=True)


@main.command()
@click.argument("kernel_id")
@_options(_ROOT, _CACHE, _TOOLCHAIN, _JSON)
def show(kernel_id: str, root: Path | None, as_json: bool, **chosen: Any) -> None:
    """Print a kernel's source, flags, cache key and, if it is built, its facts."""
    from dataclasses import asdict

    from ffpa_build.build import unit_of
    from ffpa_build.cache import Cache, default_cache_dir
    from ffpa_build.compiler import flags_for
    from ffpa_build.includes import Sources
    from ffpa_build.toolchain import locate

    spec = load_spec(root)
    variant = find_variant(spec, kernel_id)
    found = _settings(spec, chosen)
    folder = found.cache or default_cache_dir()
    tools = locate(found.toolchain, folder)
    unit = unit_of(variant, Sources(spec.csrc), tools)
    entry = Cache(folder).load(unit.key)
    data: dict[str, Any] = {
        "id": variant.id,
        "pack": variant.pack,
        "toolchain": tools.identity,
        "flags": [f"-arch={variant.target.name}", *flags_for(tools.kind)],
        "headers": list(unit.headers),
        "key": unit.key,
        "source": unit.source,
        "facts": None if entry is None else asdict(entry.facts),
        "compile": None
        if entry is None
        else {"seconds": entry.seconds, "cpu_seconds": entry.cpu_seconds, "peak_rss_mib": entry.peak_rss_mib},
    }
    if as_json:
        click.echo(json.dumps(data, indent=1))
        return
    click.echo(unit.source)
    for name in ("pack", "toolchain", "key"):
        click.echo(f"{name}: {data[name]}")
    click.echo(f"flags: {' '.join(data['flags'])}\nheaders: {' '.join(data['headers'])}")
    if entry is None:
        click.echo("not built")
        return
    for name, value in {**data["facts"], **data["compile"]}.items():
        click.echo(f"  {name} = {value}")
    click.echo(f"cubin: {Cache(folder).cubin_path(unit.key)}")


@main.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_options(_ROOT, _CACHE, _JOBS, _JSON)
@click.option("--fresh", is_flag=True, help="Compile every kernel, whatever the cache holds.")
def verify(wheel: Path, root: Path | None, as_json: bool, fresh: bool, **chosen: Any) -> None:
    """Compile a wheel's kernels from the source tree and compare every byte. Exit status 1 if one differs."""
    from contextlib import nullcontext
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from ffpa_build.cache import default_cache_dir
    from ffpa_build.verify import summary
    from ffpa_build.verify import verify as compare

    if fresh and chosen["cache"] is not None:
        raise SelectionError("--fresh compiles into a folder of its own; it cannot go with --cache-dir")
    spec = load_spec(root)
    found = _settings(spec, chosen)
    with TemporaryDirectory(prefix="ffpa-verify-") if fresh else nullcontext() as scratch:
        folder = Path(scratch) if scratch else found.cache or default_cache_dir()
        report = compare(wheel, spec, folder, found.jobs, quiet=as_json)
    if as_json:
        click.echo(json.dumps({**asdict(report), "ok": report.ok}, indent=1))
    else:
        for verdict in report.verdicts:
            click.echo(f"{verdict.kernel}: {verdict.outcome}")
        click.echo(summary(report))
    sys.exit(0 if report.ok else 1)


@main.command()
@_options(_ROOT, _CACHE, _OUT)
@click.option("--cache", "with_cache", is_flag=True, help="Remove the cache of cubins and toolchains too.")
def clean(root: Path | None, out: Path | None, with_cache: bool, **chosen: Any) -> None:
    """Remove the packs that `build` wrote."""
    from ffpa_build.cache import default_cache_dir
    from ffpa_build.outputs import CACHE_FOLDERS, pack_folders, remove

    spec = load_spec(root)
    paths = pack_folders(spec, out)
    if with_cache:
        cache = _settings(spec, chosen).cache or default_cache_dir()
        paths += [cache / name for name in CACHE_FOLDERS]
    for path in remove(paths):
        click.echo(f"removed {path}")


@main.command()
@_options(*_SELECTION_OPTIONS, *_BUILD_OPTIONS, *_INSTALL_OPTIONS, _ROOT)
def install(root: Path | None, **chosen: Any) -> None:
    """Compile a selection and install its distributions into this Python with pip: what build.sh runs."""
    from ffpa_build.install import Steps, run, shared_memory_cache

    spec = load_spec(root)
    if chosen["shm"]:
        chosen["cache"] = str(shared_memory_cache(chosen["cache"], create=not chosen["dry_run"]))
    found = _settings(spec, chosen)
    matrix = _matrix(spec, found.selection, None)
    _print_plan(spec, matrix)
    sys.exit(run(Steps.plan(spec, found, matrix, chosen), dry_run=chosen["dry_run"]))
