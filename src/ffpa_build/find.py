"""A kernel's id -> its variant."""

from __future__ import annotations

from dataclasses import replace

from ffpa_build.errors import SelectionError
from ffpa_build.matrix import Variant, expand
from ffpa_build.model import Spec
from ffpa_build.selection import Selection


def find_variant(spec: Spec, kernel_id: str) -> Variant:
    """The variant of an id, whether or not a preset selects it. Raises SelectionError."""
    base, _, target = kernel_id.partition("-for_")
    parts = base.split("-")
    if len(parts) < 5 or not parts[3][:1] == "d" or not parts[4][:1] == "s":
        raise SelectionError(
            f"kernel = {kernel_id!r}: allowed: <family>.<impl>-<arch>-<dtype>-d<D>-s<stages>[-accf16][-<feature>...]"
        )
    impls = [impl for impl in spec.impls if impl.id == parts[0]]
    if not impls:
        raise SelectionError(f"kernel = {kernel_id!r}: impl: allowed: {', '.join(i.id for i in spec.impls)}")
    features = [part for part in parts[5:] if part != "accf16"]
    selection = Selection.make(
        spec,
        archs=[target or parts[1]],
        ext=[impls[0].ext],
        head_dims=[parts[3][1:]],
        stages=[parts[4][1:]],
        dtypes=[parts[2]],
        acc=["f16" if "accf16" in parts else "f32"],
        features=features,
        opt_in="all",
    )
    if target:
        selection = replace(selection, emulate=(spec.aliases.get(parts[1], parts[1]),))
    for variant in expand(spec, selection).variants:
        if variant.id == kernel_id:
            return variant
    raise SelectionError(f"kernel = {kernel_id!r}: the tables declare no such variant")
