"""Variants -> compiled variants: looks each up in the cache, compiles what is missing, checks the facts of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ffpa_build.cache import Cache, Entry, cache_key
from ffpa_build.codegen import generate
from ffpa_build.compile_one import Job, error_path
from ffpa_build.compiler import flags_for
from ffpa_build.errors import IncludeError
from ffpa_build.facts import violations
from ffpa_build.includes import Sources
from ffpa_build.matrix import Variant
from ffpa_build.model import Spec, ToolchainSpec
from ffpa_build.schedule import Progress, job_count, repeat_command, run_ninja
from ffpa_build.toolchain import Toolchain, check_target, resolve


@dataclass(frozen=True)
class Unit:
    """A variant with the text that is compiled and its key; `headers` maps names below csrc/ to texts."""

    variant: Variant
    source: str
    headers: dict[str, str]
    key: str


@dataclass(frozen=True)
class Built:
    """A variant that is compiled and within its limits."""

    unit: Unit
    entry: Entry

    @property
    def variant(self) -> Variant:
        return self.unit.variant


@dataclass(frozen=True)
class Failure:
    """A variant that is not. `command` repeats the compile, where there was one."""

    variant: Variant
    reason: str
    log: str = ""
    command: str = ""


@dataclass(frozen=True)
class BuildReport:
    """The outcome for every variant, in the order of the matrix. `compiled` counts those not found in the cache."""

    toolchain: Toolchain
    built: tuple[Built, ...]
    failures: tuple[Failure, ...]
    compiled: int


def unit_of(variant: Variant, sources: Sources, toolchain: Toolchain) -> Unit:
    """Generates a variant's source and computes its key. Raises IncludeError."""
    source = generate(variant)
    headers = sources.closure(source, variant.id)
    flags = flags_for(toolchain.kind)
    key = cache_key(toolchain.identity, variant.target.name, flags, variant.id, source, headers)
    return Unit(variant, source, headers, key)


def build_variants(
    spec: Spec,
    variants: Sequence[Variant],
    declared: ToolchainSpec,
    cache_dir: Path,
    jobs: int | None = None,
    quiet: bool = False,
    nvcc_threads: int | None = None,
) -> BuildReport:
    """Compiles what the cache does not have, with `jobs` compiles at once (None: from cores and memory), each with
    `nvcc_threads` threads where nvcc compiles.

    A variant that fails does not stop the others. Raises BuildError only for what concerns all of them.
    """
    for target in dict.fromkeys(variant.target for variant in variants):
        check_target(declared, target)
    cache_dir = cache_dir.resolve()  # compiles run elsewhere
    toolchain = replace(resolve(declared, cache_dir), threads=nvcc_threads or 0)
    cache = Cache(cache_dir)
    sources = Sources(spec.csrc)
    failures: dict[str, Failure] = {}
    units: list[Unit] = []
    for variant in variants:
        try:
            units.append(unit_of(variant, sources, toolchain))
        except IncludeError as error:
            failures[variant.id] = Failure(variant, str(error))
    entries = {unit.key: cache.load(unit.key) for unit in units}
    missing = [unit for unit in units if entries[unit.key] is None]
    if missing:
        job_paths, output = _compile(spec, missing, toolchain, cache, jobs, quiet)
        for unit in missing:
            entries[unit.key] = cache.load(unit.key)
            if entries[unit.key] is None:
                name = unit.variant.id
                failures[name] = _failure(unit.variant, job_paths[name], output)
            else:
                job_paths[unit.variant.id].unlink(missing_ok=True)

    built: list[Built] = []
    for unit in units:
        entry = entries[unit.key]
        if entry is None:
            continue
        wrong = violations(unit.variant, entry.facts, declared.name)
        if wrong:
            failures[unit.variant.id] = Failure(unit.variant, "; ".join(wrong), entry.log)
        else:
            built.append(Built(unit, entry))
    ordered = tuple(failures[variant.id] for variant in variants if variant.id in failures)
    return BuildReport(toolchain, tuple(built), ordered, len(missing))


def _compile(
    spec: Spec, units: list[Unit], toolchain: Toolchain, cache: Cache, jobs: int | None, quiet: bool
) -> tuple[dict[str, Path], str]:
    """Runs the compiles. Returns the job file of each kernel id, and ninja's text."""
    parallel = min(len(units), job_count(jobs, max(unit.variant.impl.memory_mib for unit in units)))
    job_paths: dict[str, Path] = {}
    for unit in units:
        name = unit.variant.id
        path = cache.folder / "jobs" / f"{name}.{unit.key[:16]}.json"
        error_path(path).unlink(missing_ok=True)
        Job(
            key=unit.key,
            name=name,
            entry=unit.variant.entry,
            source=unit.source,
            target=unit.variant.target.name,
            csrc=str(spec.csrc),
            cache=str(cache.folder),
            toolchain=toolchain,
        ).write(path)
        job_paths[name] = path
    progress = Progress(list(job_paths), quiet)
    try:
        return job_paths, run_ninja(job_paths, parallel, cache.folder / "jobs", progress)
    except BaseException:
        for path in job_paths.values():
            path.unlink(missing_ok=True)
        raise
    finally:
        progress.close()


def _failure(variant: Variant, job_path: Path, output: str) -> Failure:
    command = repeat_command(job_path)
    try:
        error = json.loads(error_path(job_path).read_bytes())
        return Failure(variant, str(error["message"]), str(error["log"]), command)
    except (OSError, ValueError, KeyError):
        reason = f"the compile of {variant.id} ended without a result (killed, out of memory, or the disk is full?)"
        return Failure(variant, reason, output[output.find(variant.id) :][:4000], command)
