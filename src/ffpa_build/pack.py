"""Compiled variants -> the contents of kernel packs: a package with an empty `__init__.py`, a manifest and cubins.

The same variants give the same bytes.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ffpa_attn.manifest import PACK_ABI, SCHEMA, Compiler, KernelInfo, Manifest
from ffpa_attn.packs import NO_KERNELS
from ffpa_build.build import Built
from ffpa_build.compiler import flags_for
from ffpa_build.model import Pack, Spec
from ffpa_build.selection import Selection
from ffpa_build.toolchain import Toolchain

# Manifest fields that a pack takes over from the facts of a cubin.
_FACT_FIELDS = (
    "sha256 size entry threads smem_bytes tile_m tile_n cluster param_bytes box_cols box_q_rows box_kv_rows "
    "swizzle persistent registers spill_bytes"
).split()


@dataclass(frozen=True)
class PackBuild:
    """A pack on disk: `path` is the package's folder, `files` are relative to it and sorted."""

    pack: Pack
    version: str
    path: Path
    files: tuple[str, ...]
    manifest: Manifest


def local_label(spec: Spec, selection: Selection, pack: Pack | None = None) -> str:
    """The local part of a version, without the +: empty for a build of every arch of the pack (None: of all packs).

    `sm80.sm89` for a build restricted to these; `emulated.sm89.for.sm90a` for kernels compiled for another arch;
    NO_KERNELS where nothing is compiled.
    """
    declared = [arch for arch in spec.archs if any(arch in p.archs for p in ([pack] if pack else spec.packs.values()))]
    chosen = [arch for arch in (selection.emulate or selection.archs) if arch in declared]
    labels = [spec.archs[arch].label for arch in spec.archs if arch in chosen]
    if not labels or not selection.exts:
        return NO_KERNELS
    if selection.emulate:
        return ".".join(["emulated", *labels, "for", *(spec.archs[arch].label for arch in selection.archs)])
    return "" if len(chosen) == len(declared) else ".".join(labels)


def distribution_version(spec: Spec, selection: Selection, pack: str | None = None) -> str:
    """The version of a pack's distribution, or with None of a distribution that stands for all of them.

    The version of the VERSION file, with a local label such as `+sm89` if the selection leaves out an arch that the
    pack declares. Raises KeyError for an unknown pack.
    """
    label = local_label(spec, selection, None if pack is None else spec.packs[pack])
    return f"{spec.version}+{label}" if label else spec.version


def kernel_info(built: Built) -> KernelInfo:
    """The manifest row of a compiled variant."""
    variant = built.variant
    facts = asdict(built.entry.facts)
    return KernelInfo(
        id=variant.id,
        family=variant.impl.family,
        impl=variant.impl.name,
        ext=variant.impl.ext,
        recipe=variant.impl.recipe,
        problems=variant.impl.problems,
        arch=variant.arch.name,
        capabilities=variant.target.capabilities,
        rank=variant.rank,
        dtype=variant.dtype,
        acc=variant.acc,
        head_dim=variant.head_dim,
        stages=variant.stages,
        features=variant.features,
        order=variant.impl.order,
        row_cost=variant.impl.row_cost,
        file=f"cubins/{variant.id}.cubin",
        **{name: facts[name] for name in _FACT_FIELDS},
    )


def source_digest(built: Iterable[Built]) -> str:
    """sha256 over the generated sources of compiled variants and every header that they reach."""
    digest = hashlib.sha256()
    rows = tuple(built)
    texts = {row.variant.id: row.unit.source for row in rows}
    for row in rows:
        texts.update(row.unit.headers)
    for name, text in sorted(texts.items()):
        digest.update(f"{name}\0{len(text)}\0{text}\0".encode())
    return digest.hexdigest()


def make_manifest(
    pack: Pack, built: Iterable[Built], toolchain: Toolchain, version: str, debug: tuple[str, ...] = ()
) -> Manifest:
    """The manifest of a pack. `source_digest` covers the generated sources and every header that they reach."""
    rows = sorted(built, key=lambda item: item.variant.id)
    return Manifest(
        schema=SCHEMA,
        pack=pack.name,
        distribution=pack.distribution,
        version=version,
        pack_abi=PACK_ABI,
        source_digest=source_digest(rows),
        compiler=Compiler(toolchain.kind, toolchain.version),
        flags=flags_for(toolchain.kind),
        kernels=tuple(kernel_info(row) for row in rows),
        debug=debug,
    )


def write_pack(
    pack: Pack,
    built: Iterable[Built],
    toolchain: Toolchain,
    version: str,
    out_dir: Path,
    debug: tuple[str, ...] = (),
) -> PackBuild:
    """Writes `<out_dir>/<package>`, replacing what is there; a pack that is there already is left alone."""
    rows = tuple(built)
    manifest = make_manifest(pack, rows, toolchain, version, debug)
    contents: dict[str, bytes] = {
        "__init__.py": b"",
        "manifest.json": manifest.to_json().encode(),
        **{f"cubins/{row.variant.id}.cubin": row.entry.cubin for row in rows},
    }
    final = out_dir / pack.package
    if not _holds(final, contents):
        out_dir.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{pack.package}-", dir=out_dir))
        try:
            fresh = staging / "new"
            (fresh / "cubins").mkdir(parents=True)
            for name, data in contents.items():
                (fresh / name).write_bytes(data)
            if final.exists():
                final.rename(staging / "old")
            fresh.rename(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return PackBuild(pack, version, final, tuple(sorted(contents)), manifest)


def _holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    try:
        present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        return present == set(contents) and all((folder / name).read_bytes() == contents[name] for name in contents)
    except OSError:
        return False
