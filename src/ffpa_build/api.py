"""What build hooks and tools call.

    spec = load_spec()
    selection = Selection.make(spec, "default", archs="sm89", head_dims="64,512")
    packs = build_packs(selection, Path("build/packs"), spec=spec)
    packs["core"].path, packs["core"].version

Every error that a user can act on is an `ffpa_build.errors.BuildError`.
"""

from __future__ import annotations

from pathlib import Path

from ffpa_build.build import BuildReport, Built, Failure, build_variants
from ffpa_build.cache import default_cache_dir
from ffpa_build.errors import BuildError
from ffpa_build.matrix import Matrix, Skip, Variant, expand, shard
from ffpa_build.model import Pack, Spec
from ffpa_build.pack import PackBuild, distribution_version, write_pack
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec
from ffpa_build.toolchain import toolchain_spec

__all__ = [
    "BuildError",
    "BuildFailed",
    "BuildReport",
    "Built",
    "Failure",
    "Matrix",
    "Pack",
    "PackBuild",
    "Selection",
    "Skip",
    "Spec",
    "Variant",
    "assemble_packs",
    "build_packs",
    "build_report",
    "default_cache_dir",
    "distribution_version",
    "expand",
    "load_spec",
    "shard",
]


class BuildFailed(BuildError):
    """Some variants failed; `report` says which and why. The text lists them."""

    def __init__(self, report: BuildReport) -> None:
        lines = [f"  {failure.variant.id}: {failure.reason}" for failure in report.failures]
        super().__init__("\n".join([f"{len(lines)} of the kernels failed to build:", *lines]))
        self.report = report


def build_report(
    selection: Selection,
    *,
    spec: Spec | None = None,
    toolchain: str | None = None,
    cache_dir: Path | None = None,
    jobs: int | None = None,
    quiet: bool = False,
    part: tuple[int, int] | None = None,
    nvcc_threads: int | None = None,
) -> BuildReport:
    """Compiles a selection, and says what became of each variant.

    `toolchain` is a name of `variants/toolchains/` (None: the default); `jobs` None sizes the pool from cores and
    memory; `part` (i, n) compiles the i-th of n shards only; `nvcc_threads` None leaves them to nvcc.
    """
    spec = load_spec() if spec is None else spec
    variants = expand(spec, selection).variants
    if part is not None:
        variants = shard(variants, *part)
    declared = toolchain_spec(spec, toolchain)
    return build_variants(spec, variants, declared, cache_dir or default_cache_dir(), jobs, quiet, nvcc_threads)


def assemble_packs(
    report: BuildReport, selection: Selection, out_dir: Path, *, spec: Spec, version: str | None = None
) -> dict[str, PackBuild]:
    """Writes `<out_dir>/<package>` of every pack whose variants were all built; returns them by pack name.

    `version` None is `distribution_version` of each pack.
    """
    incomplete = {failure.variant.pack for failure in report.failures}
    packs = {}
    for pack in spec.packs.values():
        built = [row for row in report.built if row.variant.pack == pack.name]
        if built and pack.name not in incomplete:
            pack_version = distribution_version(spec, selection, pack.name) if version is None else version
            packs[pack.name] = write_pack(pack, built, report.toolchain, pack_version, out_dir, selection.debug)
    return packs


def build_packs(
    selection: Selection,
    out_dir: Path,
    *,
    spec: Spec | None = None,
    version: str | None = None,
    toolchain: str | None = None,
    cache_dir: Path | None = None,
    jobs: int | None = None,
    quiet: bool = False,
    nvcc_threads: int | None = None,
) -> dict[str, PackBuild]:
    """Compiles a selection (restricted to `selection.packs`) and writes its packs. Raises BuildFailed, BuildError."""
    spec = load_spec() if spec is None else spec
    report = build_report(
        selection,
        spec=spec,
        toolchain=toolchain,
        cache_dir=cache_dir,
        jobs=jobs,
        quiet=quiet,
        nvcc_threads=nvcc_threads,
    )
    if report.failures:
        raise BuildFailed(report)
    return assemble_packs(report, selection, out_dir, spec=spec, version=version)
