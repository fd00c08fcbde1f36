"""Reads the tables below `variants/` into the dataclasses of `ffpa_build.model`; rejects what is wrong in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffpa_attn.recipes import RECIPES
from ffpa_build.errors import SpecError
from ffpa_build.model import (
    ACCUMULATORS,
    ARCH_NAME,
    DTYPES,
    HEAD_DIM_MULTIPLE,
    MAX_HEAD_DIM,
    MAX_WHEEL_MB,
    PROBLEMS,
    TOOLCHAIN_KINDS,
    Arch,
    HeadDims,
    Impl,
    Pack,
    Preset,
    Rule,
    Spec,
    ToolchainSpec,
)
from ffpa_build.tables import Table, child_tables, read_toml

__all__ = ["Arch", "Impl", "Pack", "Preset", "Spec", "ToolchainSpec", "find_root", "load_spec"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CAPABILITY = re.compile(r"\d+\.\d")
_VERSION = re.compile(r"\d+(\.\d+)+")
_CPP_NAME = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")
_PACKAGE = re.compile(r"[a-z_][a-z0-9_]*")
_REQUIREMENT = re.compile(r"[a-z0-9-]+==[0-9][0-9.]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DISTRIBUTION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def find_root() -> Path:
    """The source tree that this module stands in, or the one around the current folder. Raises SpecError."""
    here = Path(__file__).resolve()
    for folder in (*here.parents, Path.cwd(), *Path.cwd().parents):
        if (folder / "variants" / "archs.toml").is_file():
            return folder
    raise SpecError("variants/archs.toml: not found in any folder above the build system or the current folder")


def load_spec(root: Path | None = None) -> Spec:
    """Reads and checks every table below `<root>/variants`. Raises SpecError."""
    root = find_root() if root is None else Path(root).resolve()
    folder = root / "variants"
    archs, aliases = _archs(folder)
    toolchains = _toolchains(folder)
    impls = _impls(folder, archs, tuple(toolchains))
    exts = tuple(dict.fromkeys(impl.ext for impl in impls))
    packs = _packs(folder, archs, impls)
    head_dim_sets, presets = _presets(folder, archs, impls, exts)
    return Spec(root, archs, impls, packs, head_dim_sets, presets, toolchains, aliases)


def _checked_name(table: Table, key: str, value: str, pattern: re.Pattern[str], what: str) -> str:
    if not pattern.fullmatch(value):
        raise table.error(key, value, f"must be {what}")
    return value


def _archs(folder: Path) -> tuple[dict[str, Arch], dict[str, str]]:
    file = "variants/archs.toml"
    archs: dict[str, Arch] = {}
    aliases: dict[str, str] = {}
    for name, table in child_tables(file, "", read_toml(folder / "archs.toml", file)):
        _checked_name(table, "name", name, ARCH_NAME, "sm_<number>, with an optional suffix a or f")
        arch = Arch(
            name=name,
            title=table.string("title"),
            capabilities=table.strings("capabilities", empty=False),
            min_cuda=_checked_name(table, "min_cuda", table.string("min_cuda"), _VERSION, 'like "12.9"'),
            smem_block=table.integer("smem_block_kib", minimum=1) * 1024,
            features=table.strings("features"),
            auto=table.strings("auto"),
            aliases=table.strings("aliases", default=()),
        )
        table.finish()
        for capability in arch.capabilities:
            _checked_name(table, "capabilities", capability, _CAPABILITY, 'like "9.0"')
        for alias in (name, *arch.aliases):
            if alias in aliases:
                raise table.error("aliases", alias, f"already means {aliases[alias]}")
            aliases[alias] = name
        archs[name] = arch
    if not archs:
        raise SpecError(f"{file}: no arch is declared")
    return archs, aliases


def _head_dims(table: Table, key: str, data: Any) -> HeadDims:
    if isinstance(data, list):
        data = {"values": data}
    if not isinstance(data, dict):
        raise table.error(key, data, "must be { min, max, multiple } or a list")
    inner = Table(table.file, f"{table.name}.{key}", data)
    if inner.has("values"):
        values = inner.integers("values", empty=False)
        inner.finish()
        for value in values:
            if value % HEAD_DIM_MULTIPLE or value > MAX_HEAD_DIM:
                raise inner.error("values", value, f"multiples of {HEAD_DIM_MULTIPLE} up to {MAX_HEAD_DIM}")
        return HeadDims(min(values), max(values), HEAD_DIM_MULTIPLE, tuple(sorted(values)))
    minimum = inner.integer("min", default=HEAD_DIM_MULTIPLE, minimum=1)
    maximum = inner.integer("max", default=MAX_HEAD_DIM, minimum=1)
    multiple = inner.integer("multiple", default=HEAD_DIM_MULTIPLE, minimum=1)
    inner.finish()
    if multiple % HEAD_DIM_MULTIPLE:
        raise inner.error("multiple", multiple, f"must be a multiple of {HEAD_DIM_MULTIPLE}")
    if minimum % HEAD_DIM_MULTIPLE or not minimum <= maximum <= MAX_HEAD_DIM:
        raise inner.error("min", minimum, f"need multiples of {HEAD_DIM_MULTIPLE} with min <= max <= {MAX_HEAD_DIM}")
    return HeadDims(minimum, maximum, multiple)


def _rule(table: Table, archs: tuple[str, ...], features: tuple[str, ...], toolchains: tuple[str, ...] = ()) -> Rule:
    """A row of `skip`, or with the names of toolchains one of `spills`."""
    rule = Rule(
        reason=table.string("reason"),
        archs=table.strings("archs", default=(), allowed=archs),
        dtypes=table.strings("dtypes", default=(), allowed=DTYPES),
        acc=table.strings("acc", default=(), allowed=ACCUMULATORS),
        stages=table.integers("stages", default=()),
        features=table.strings("features", default=(), allowed=features),
        head_dim=_head_dims(table, "head_dim", table.raw("head_dim")) if table.has("head_dim") else None,
        bytes=table.integer("bytes", minimum=1) if toolchains else 0,
        toolchains=table.strings("toolchains", default=(), allowed=toolchains) if toolchains else (),
    )
    table.finish()
    return rule


def _impls(folder: Path, archs: Mapping[str, Arch], toolchains: tuple[str, ...]) -> tuple[Impl, ...]:
    file = "variants/families.toml"
    impls = []
    for family, family_data in read_toml(folder / "families.toml", file).items():
        if not isinstance(family_data, dict):
            raise SpecError(f"{file}: {family} = {family_data!r}: unknown key; only tables stand here")
        head = Table(file, family, {key: value for key, value in family_data.items() if not isinstance(value, dict)})
        _checked_name(head, "name", family, _NAME, "lower-case letters, digits and _")
        head.string("title")
        head.finish()
        rows = {key: value for key, value in family_data.items() if isinstance(value, dict)}
        if not rows:
            raise SpecError(f"{file}: [{family}]: declares no implementation")
        impls += [_impl(family, name, table, archs, toolchains) for name, table in child_tables(file, family, rows)]
    if not impls:
        raise SpecError(f"{file}: no family is declared")
    by_id = {impl.id: impl for impl in impls}
    for impl in impls:
        for name in impl.needs:
            other = by_id.get(f"{impl.family}.{name}")
            if other is None or other.problems != ("merge",):
                followers = [i.name for i in impls if i.family == impl.family and i.problems == ("merge",)]
                allowed = ", ".join(followers) or "none"
                raise SpecError(
                    f"{file}: [{impl.id}]: needs = {name!r}: allowed are impls of the family whose problems are "
                    f'["merge"]: {allowed}'
                )
            lacking = sorted(set(impl.archs) - set(other.archs)) + sorted(set(impl.dtypes) - set(other.dtypes))
            if lacking:
                raise SpecError(f"{file}: [{impl.id}]: needs = {name!r}: [{other.id}] lacks {', '.join(lacking)}")
    return tuple(impls)


def _impl(family: str, name: str, table: Table, archs: Mapping[str, Arch], toolchains: tuple[str, ...]) -> Impl:
    _checked_name(table, "name", name, _NAME, "lower-case letters, digits and _")
    header = table.string("header")
    if header.startswith("/") or ".." in header.split("/") or "\\" in header or not header.endswith((".cuh", ".h")):
        raise table.error("header", header, "must be a path below csrc/ that ends in .cuh or .h")
    impl_archs = table.strings("archs", allowed=archs, empty=False)
    arch_features = sorted({feature for arch in archs.values() for feature in arch.features})
    requires = table.strings("requires", allowed=arch_features)
    for arch in impl_archs:
        for feature in requires:
            if feature not in archs[arch].features:
                has = ", ".join(archs[arch].features)
                raise table.error("requires", feature, f"{arch} is in archs but only has: {has}")
    features = table.strings("features")
    for feature in features:
        _checked_name(table, "features", feature, _NAME, "lower-case letters, digits and _")
    exclusive = table.strings("exclusive", default=(), allowed=features)
    if len(exclusive) == 1:
        raise table.error("exclusive", list(exclusive), "needs at least two features")
    impl = Impl(
        family=family,
        name=name,
        title=table.string("title"),
        ext=_checked_name(table, "ext", table.string("ext"), _NAME, "lower-case letters, digits and _"),
        header=header,
        kernel=_checked_name(table, "kernel", table.string("kernel"), _CPP_NAME, "a qualified C++ name"),
        recipe=table.string("recipe", allowed=RECIPES),
        problems=table.strings("problems", allowed=PROBLEMS, empty=False),
        archs=impl_archs,
        requires=requires,
        dtypes=table.strings("dtypes", allowed=DTYPES, empty=False),
        acc=table.strings("acc", allowed=ACCUMULATORS, empty=False),
        head_dim=_head_dims(table, "head_dim", table.raw("head_dim")),
        stages=table.integers("stages", empty=False),
        features=features,
        exclusive=exclusive,
        spills=tuple(_rule(rule, impl_archs, features, toolchains) for rule in table.tables("spills")),
        skip=tuple(_rule(rule, impl_archs, features) for rule in table.tables("skip")),
        memory_mib=table.integer("memory_mib", default=1024, minimum=64),
        needs=table.strings("needs", default=()),
        order=table.integer("order", default=0),
        row_cost=table.integer("row_cost", default=0),
        opt_in=_checked_name(table, "opt_in", table.string("opt_in"), _NAME, "lower-case letters, digits and _")
        if table.has("opt_in")
        else "",
    )
    table.finish()
    return impl


def _packs(folder: Path, archs: Mapping[str, Arch], impls: tuple[Impl, ...]) -> dict[str, Pack]:
    file = "variants/packs.toml"
    families = tuple(dict.fromkeys(impl.family for impl in impls))
    packs: dict[str, Pack] = {}
    claims: dict[tuple[str, str], str] = {}
    for name, table in child_tables(file, "", read_toml(folder / "packs.toml", file)):
        _checked_name(table, "name", name, _NAME, "lower-case letters, digits and _")
        pack = Pack(
            name=name,
            distribution=_checked_name(
                table, "distribution", table.string("distribution"), _DISTRIBUTION, "a lower-case name with -"
            ),
            package=_checked_name(table, "package", table.string("package"), _PACKAGE, "a Python package name"),
            title=table.string("title"),
            families=table.strings("families", allowed=families, empty=False),
            archs=table.strings("archs", allowed=archs, empty=False),
            wheel_mb=table.integer("wheel_mb", default=MAX_WHEEL_MB, minimum=1),
        )
        table.finish()
        if pack.wheel_mb > MAX_WHEEL_MB:
            raise table.error("wheel_mb", pack.wheel_mb, f"1 to {MAX_WHEEL_MB}, the limit of the package index")
        for key in ("distribution", "package"):
            for other in packs.values():
                if getattr(other, key) == getattr(pack, key):
                    raise table.error(key, getattr(pack, key), f"already used by [{other.name}]")
        for family in pack.families:
            for arch in pack.archs:
                if (family, arch) in claims:
                    owner = claims[family, arch]
                    raise table.error("families", family, f"its {arch} kernels are already in [{owner}]")
                claims[family, arch] = name
        packs[name] = pack
    for impl in impls:
        for arch in impl.archs:
            if (impl.family, arch) not in claims:
                raise SpecError(f"{file}: no pack lists family {impl.family!r} with arch {arch!r}, which {impl.id} has")
    return packs


def _presets(
    folder: Path, archs: Mapping[str, Arch], impls: tuple[Impl, ...], exts: tuple[str, ...]
) -> tuple[dict[str, tuple[int, ...]], dict[str, Preset]]:
    file = "variants/presets.toml"
    top = Table(file, "", read_toml(folder / "presets.toml", file))
    sets_data, presets_data = top.raw("head_dims"), top.raw("preset")
    top.finish()
    if not isinstance(sets_data, dict) or not isinstance(presets_data, dict):
        raise SpecError(f"{file}: head_dims and preset must be tables")
    sets_table = Table(file, "head_dims", sets_data)
    sets = {name: sets_table.integers(name, empty=False) for name in sets_data}
    for name in ("default", "all"):
        if name not in sets:
            raise SpecError(f"{file}: [head_dims] {name}: this key is required")
    for name, values in sets.items():
        for value in values:
            _check_head_dim(sets_table, name, value)
    features = tuple(dict.fromkeys(feature for impl in impls for feature in impl.features))
    stages = tuple(sorted({stage for impl in impls for stage in impl.stages}))
    opt_ins = tuple(dict.fromkeys(impl.opt_in for impl in impls if impl.opt_in))
    presets: dict[str, Preset] = {}
    for name, table in child_tables(file, "preset", presets_data):
        ext = table.raw("ext")
        head_dims = table.raw("head_dims")
        if ext != "all":
            ext = Table(file, table.name, {"ext": ext}).strings("ext", allowed=exts, empty=False)
        if isinstance(head_dims, str):
            if head_dims not in sets:
                raise table.error("head_dims", head_dims, f"allowed: {', '.join(sets)} or a list")
        else:
            head_dims = Table(file, table.name, {"head_dims": head_dims}).integers("head_dims", empty=False)
            for value in head_dims:
                _check_head_dim(table, "head_dims", value)
        preset = Preset(
            name=name,
            title=table.string("title"),
            archs=table.strings("archs", allowed=archs, empty=False),
            emulate=table.strings("emulate", default=(), allowed=archs),
            ext=ext,
            head_dims=head_dims,
            dtypes=table.strings("dtypes", allowed=DTYPES, empty=False),
            acc=table.strings("acc", allowed=ACCUMULATORS, empty=False),
            stages=table.integers("stages", empty=False),
            features=table.strings("features", allowed=features),
            opt_in=table.strings("opt_in", default=(), allowed=opt_ins),
        )
        table.finish()
        for stage in preset.stages:
            if stage not in stages:
                raise table.error("stages", stage, f"allowed: {', '.join(map(str, stages))}")
        for arch in preset.emulate:
            if arch in preset.archs:
                raise table.error("emulate", arch, "is in archs too; an arch cannot be emulated on itself")
        presets[name] = preset
    if "default" not in presets:
        raise SpecError(f"{file}: [preset.default] is required")
    return sets, presets


def _check_head_dim(table: Table, key: str, value: int) -> None:
    if value % HEAD_DIM_MULTIPLE or not 0 < value <= MAX_HEAD_DIM:
        raise table.error(key, value, f"multiples of {HEAD_DIM_MULTIPLE} in {HEAD_DIM_MULTIPLE}..{MAX_HEAD_DIM}")


def _toolchains(folder: Path) -> dict[str, ToolchainSpec]:
    toolchains: dict[str, ToolchainSpec] = {}
    for path in sorted((folder / "toolchains").glob("*.toml")):
        file = f"variants/toolchains/{path.name}"
        table = Table(file, path.stem, read_toml(path, file))
        kind = table.string("kind", allowed=TOOLCHAIN_KINDS)
        # An nvcc may come with the system alone; NVRTC is taken from the packages that are pinned.
        requirements = table.strings("requirements", empty=kind == "nvcc")
        for requirement in requirements:
            _checked_name(table, "requirements", requirement, _REQUIREMENT, "name==version")
        toolchain = ToolchainSpec(
            name=path.stem,
            kind=kind,
            version=_checked_name(table, "version", table.string("version"), _VERSION, 'like "12.9.86"'),
            requirements=requirements,
            hashes=_hashes(table, requirements) if requirements else (),
            library=table.string("library") if requirements else "",
            default=table.boolean("default", default=False),
        )
        table.finish()
        toolchains[toolchain.name] = toolchain
    defaults = [toolchain.name for toolchain in toolchains.values() if toolchain.default]
    if len(defaults) != 1:
        raise SpecError(f"variants/toolchains: default = true must stand in exactly one file; found {defaults}")
    return toolchains


def _hashes(table: Table, requirements: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    data = table.raw("hashes")
    if not isinstance(data, dict):
        raise table.error("hashes", data, "must be a table, requirement -> list of sha256")
    inner = Table(table.file, "hashes", data)
    hashes = tuple(inner.strings(requirement, empty=False) for requirement in requirements)
    inner.finish()
    for requirement, digests in zip(requirements, hashes, strict=True):
        for digest in digests:
            _checked_name(inner, requirement, digest, _SHA256, "64 lower-case hexadecimal digits")
    return hashes
