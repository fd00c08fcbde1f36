"""What a user asks to build: a preset with overrides, checked against the declared tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ffpa_attn.manifest import DEBUG_FAMILIES
from ffpa_build.errors import SelectionError
from ffpa_build.model import ACCUMULATORS, DTYPES, HEAD_DIM_MULTIPLE, MAX_HEAD_DIM, Spec


@dataclass(frozen=True)
class Selection:
    """Canonical names only, in the order of the tables; make one with `Selection.make`.

    `archs` are compile targets. With `emulate`, the kernels of those archs are compiled for every target and nothing
    else is built. `features` are the optional features compiled besides the plain kernel. `packs` restricts the packs.
    `opt_in` names kernels that no selection has unasked. `debug` are the families whose kernel can be forced at run
    time.
    """

    archs: tuple[str, ...]
    emulate: tuple[str, ...]
    exts: tuple[str, ...]
    head_dims: tuple[int, ...]
    stages: tuple[int, ...]
    dtypes: tuple[str, ...]
    acc: tuple[str, ...]
    features: tuple[str, ...]
    packs: tuple[str, ...]
    opt_in: tuple[str, ...] = ()
    debug: tuple[str, ...] = ()

    @classmethod
    def make(
        cls,
        spec: Spec,
        preset: str = "default",
        *,
        archs: str | Sequence[str] | None = None,
        ext: str | Sequence[str] | None = None,
        head_dims: str | Sequence[int | str] | None = None,
        stages: str | Sequence[int | str] | None = None,
        dtypes: str | Sequence[str] | None = None,
        acc: str | Sequence[str] | None = None,
        features: str | Sequence[str] | None = None,
        packs: str | Sequence[str] | None = None,
        opt_in: str | Sequence[str] | None = None,
        debug: str | Sequence[str] = (),
    ) -> Selection:
        """The selection of a preset; every argument that is not None replaces the preset's value.

        A string is a comma-separated list, or `all` (for `ext`, `features`, `opt_in` and `debug` also `none`; for
        `head_dims` a named set such as `default`). Raises SelectionError with the argument, the value and what is
        allowed.
        """
        if preset not in spec.presets:
            raise SelectionError(f"preset = {preset!r}: allowed: {', '.join(spec.presets)}")
        base = spec.presets[preset]
        chosen_archs = base.archs if archs is None else _archs(spec, archs)
        for arch in base.emulate:
            if arch in chosen_archs:
                raise SelectionError(f"arch = {arch!r}: preset {preset!r} emulates it, so it cannot be the target too")
        return cls(
            archs=_ordered(chosen_archs, spec.archs),
            emulate=base.emulate,
            exts=_named("ext", base.ext if ext is None else ext, spec.exts, none=True),
            head_dims=_head_dims(spec, base.head_dims if head_dims is None else head_dims),
            stages=_stages(spec, base.stages if stages is None else stages),
            dtypes=_named("dtype", base.dtypes if dtypes is None else dtypes, DTYPES),
            acc=_named("acc", base.acc if acc is None else acc, ACCUMULATORS),
            features=_named("features", base.features if features is None else features, spec.features, none=True),
            packs=_named("pack", "all" if packs is None else packs, tuple(spec.packs)),
            opt_in=_named("opt_in", base.opt_in if opt_in is None else opt_in, spec.opt_ins, none=True),
            debug=_named("debug", debug, DEBUG_FAMILIES, none=True),
        )


def _items(option: str, value: str | Sequence[object]) -> list[str]:
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else [str(item) for item in value]
    if not items or not all(items):
        raise SelectionError(f"{option} = {value!r}: is empty")
    return items


def _ordered(chosen: Sequence[str], order: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in order if name in chosen)


def _named(option: str, value: str | Sequence[str], allowed: tuple[str, ...], none: bool = False) -> tuple[str, ...]:
    if value == "all":
        return allowed
    if none and (value == "none" or not value):
        return ()
    items = _items(option, value)
    for item in items:
        if item not in allowed:
            names = ", ".join((*allowed, "all", *(("none",) if none else ())))
            raise SelectionError(f"{option} = {item!r}: allowed: {names}")
    return _ordered(items, allowed)


def _archs(spec: Spec, value: str | Sequence[str]) -> tuple[str, ...]:
    if value == "all":
        return tuple(spec.archs)
    names = []
    for item in _items("arch", value):
        if item.lower() not in spec.aliases:
            known = "; ".join(f"{arch.name} ({', '.join(arch.aliases)})" for arch in spec.archs.values())
            raise SelectionError(f"arch = {item!r}: allowed: all; {known}")
        names.append(spec.aliases[item.lower()])
    return tuple(names)


def _integers(option: str, items: Sequence[str], allowed: str) -> list[int]:
    try:
        return [int(item) for item in items]
    except ValueError as error:
        raise SelectionError(f"{option} = {', '.join(items)!r}: allowed: {allowed}") from error


def _head_dims(spec: Spec, value: str | Sequence[int | str]) -> tuple[int, ...]:
    allowed = (
        f"{', '.join(spec.head_dim_sets)} or multiples of {HEAD_DIM_MULTIPLE} in {HEAD_DIM_MULTIPLE}..{MAX_HEAD_DIM}"
    )
    chosen: set[int] = set()
    for item in _items("headdim", value):
        if item in spec.head_dim_sets:
            chosen.update(spec.head_dim_sets[item])
            continue
        (head_dim,) = _integers("headdim", [item], allowed)
        if head_dim % HEAD_DIM_MULTIPLE or not 0 < head_dim <= MAX_HEAD_DIM:
            raise SelectionError(f"headdim = {head_dim}: allowed: {allowed}")
        chosen.add(head_dim)
    return tuple(sorted(chosen))


def _stages(spec: Spec, value: str | Sequence[int | str]) -> tuple[int, ...]:
    if value == "all":
        return spec.stages
    allowed = f"{', '.join(map(str, spec.stages))}, all"
    chosen = _integers("stages", _items("stages", value), allowed)
    for stage in chosen:
        if stage not in spec.stages:
            raise SelectionError(f"stages = {stage}: allowed: {allowed}")
    return tuple(sorted(set(chosen)))
