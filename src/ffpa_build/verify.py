"""Whether a wheel's kernels come from this source tree: each is compiled again and compared byte for byte."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ffpa_attn.manifest import Manifest, ManifestError
from ffpa_build.build import build_variants
from ffpa_build.errors import BuildError, SelectionError
from ffpa_build.find import find_variant
from ffpa_build.inspect_wheel import UnreadableWheel, Wheel
from ffpa_build.model import Spec, ToolchainSpec
from ffpa_build.pack import source_digest

MATCHES = "matches"


@dataclass(frozen=True)
class Verdict:
    """What became of one kernel: `matches`, or why it does not."""

    kernel: str
    outcome: str

    @property
    def matches(self) -> bool:
        return self.outcome == MATCHES


@dataclass(frozen=True)
class Report:
    """The verdict on every kernel of a wheel, in the manifest's order, and on its manifest."""

    toolchain: str
    verdicts: tuple[Verdict, ...]
    source_matches: bool

    @property
    def ok(self) -> bool:
        return self.source_matches and all(verdict.matches for verdict in self.verdicts)


def verify(path: Path, spec: Spec, cache_dir: Path, jobs: int | None = None, quiet: bool = False) -> Report:
    """Compiles the kernels of a wheel from the tree, with the compiler that its manifest names, and compares.

    `cache_dir` may hold kernels of this tree that are compiled already; a folder of one's own proves more. Raises
    BuildError if the wheel cannot be read, has no kernels, or names a compiler that the tree does not pin.
    """
    wheel = Wheel.read(path)
    if len(wheel.manifests) != 1:
        raise UnreadableWheel(f"{path.name}: {len(wheel.manifests)} manifests; a wheel with kernels has one")
    (name,) = wheel.manifests
    try:
        manifest = Manifest.from_json(wheel.members[name])
    except ManifestError as error:
        raise UnreadableWheel(f"{path.name}: {error}") from error
    toolchain = _toolchain(spec, manifest)
    outcomes: dict[str, str] = {}
    variants = []
    for kernel in manifest.kernels:
        try:
            variants.append(find_variant(spec, kernel.id))
        except SelectionError as error:
            outcomes[kernel.id] = f"not of this tree: {error}"
    report = build_variants(spec, variants, toolchain, cache_dir, jobs, quiet)
    outcomes.update((failure.variant.id, f"does not build: {failure.reason}") for failure in report.failures)
    built = {row.variant.id: row.entry.cubin for row in report.built}
    for kernel in manifest.kernels:
        cubin = wheel.members.get(f"{name.split('/')[0]}/{kernel.file}")
        if kernel.id in outcomes:
            continue
        if cubin is None:
            outcomes[kernel.id] = "missing from the wheel"
        elif cubin != built[kernel.id]:
            outcomes[kernel.id] = f"differs: {_digest(cubin)} in the wheel, {_digest(built[kernel.id])} from this tree"
        elif kernel.sha256 != hashlib.sha256(cubin).hexdigest():
            outcomes[kernel.id] = f"matches, but the manifest's hash is {kernel.sha256[:16]}"
        else:
            outcomes[kernel.id] = MATCHES
    verdicts = tuple(Verdict(kernel.id, outcomes[kernel.id]) for kernel in manifest.kernels)
    same_source = len(built) == len(manifest.kernels) and source_digest(report.built) == manifest.source_digest
    return Report(toolchain.name, verdicts, same_source)


def summary(report: Report) -> str:
    """One line on a report."""
    counts = Counter(verdict.matches for verdict in report.verdicts)
    source = "the source digest is this tree's" if report.source_matches else "the source digest is NOT this tree's"
    return f"{counts[True]} of {len(report.verdicts)} kernels match, compiled with {report.toolchain}; {source}"


def _toolchain(spec: Spec, manifest: Manifest) -> ToolchainSpec:
    stated = (manifest.compiler.name, manifest.compiler.version)
    known = {(toolchain.kind, toolchain.version): toolchain for toolchain in spec.toolchains.values()}
    if stated not in known:
        allowed = ", ".join(" ".join(pair) for pair in known)
        raise BuildError(f"the wheel was compiled by {' '.join(stated)}; this tree has: {allowed}")
    return known[stated]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
