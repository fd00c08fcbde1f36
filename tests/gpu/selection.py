"""What installed packs must hold. Tests skip what a selection leaves out, so a lost kernel must not look left out."""

from __future__ import annotations

from ffpa_attn.backends import Hint
from ffpa_build.matrix import expand
from ffpa_build.selection import Selection

_EXTS = {Hint.NATIVE: "native", Hint.TMA: "tma", Hint.CUTE_TMA_FP8: "fp8", Hint.CUTE_TMA_FP4: "fp4"}
_MASK_FEATURES = {"boolean": "bias", "additive": "bias", "additive_f32": "bias32"}


def selection_of(spec, pack_name, kernels):
    """The least selection with all of a pack's kernels."""
    impls = {impl.id: impl for impl in spec.impls}
    rows = [(impls[f"{kernel.family}.{kernel.impl}"], kernel) for kernel in kernels]
    chosen = [(impl, kernel) for impl, kernel in rows if impl.problems != ("merge",)]
    targets = {kernel.id.partition("-for_")[2] for kernel in kernels} - {""}
    archs = {kernel.arch for kernel in kernels}

    def ordered(known, values):
        return tuple(value for value in known if value in values)

    return Selection(
        archs=ordered(spec.archs, targets or archs),
        emulate=ordered(spec.archs, archs) if targets else (),
        exts=ordered(spec.exts, {impl.ext for impl, _ in chosen}),
        head_dims=tuple(sorted({kernel.head_dim for _, kernel in chosen})),
        # An impl with one depth has that whatever the selection says.
        stages=tuple(sorted({kernel.stages for impl, kernel in chosen if len(impl.stages) > 1})) or spec.stages[:1],
        dtypes=ordered(("bf16", "fp16"), {kernel.dtype for kernel in kernels}),
        acc=ordered(("f32", "f16"), {kernel.acc for kernel in kernels}),
        features=ordered(spec.features, {feature for kernel in kernels for feature in kernel.features}),
        packs=(pack_name,),
        opt_in=ordered(spec.opt_ins, {impl.opt_in for impl, _ in chosen}),
    )


def missing(spec, pack_name, kernels):
    """Ids that a pack lacks although it has others of the same arch, family, head dim, dtype, stages and features."""
    selection = selection_of(spec, pack_name, kernels)
    return sorted({variant.id for variant in expand(spec, selection).variants} - {kernel.id for kernel in kernels})


def left_out(problem, backend, kernels):
    """What none of the kernels for the device has and this call needs, or None: then some kernel should serve it."""
    if backend.kernel is not None:
        return None if any(kernel.id == backend.kernel for kernel in kernels) else f"no kernel {backend.kernel}"
    kernels = [kernel for kernel in kernels if "merge" not in kernel.problems and "-for_" not in kernel.id]
    if backend.hint is Hint.AUTO:
        kernels = [kernel for kernel in kernels if kernel.rank >= 0]
    else:
        kernels = [kernel for kernel in kernels if kernel.ext == _EXTS.get(backend.hint, "cute")]
    features = {_MASK_FEATURES.get(problem.mask_kind), "dropout" if problem.dropout_p > 0 else None} - {None}
    needs = {
        f"of the implementation {backend.hint.value}": lambda kernel: True,
        f"of dtype {problem.dtype}": lambda kernel: kernel.dtype == problem.dtype,
        f"with acc {backend.acc}": lambda kernel: kernel.acc == backend.acc,
        f"with the features {sorted(features)}": lambda kernel: set(kernel.features) == features,
        f"of head dim {problem.head_dim} or more": lambda kernel: kernel.head_dim >= problem.head_dim,
    }
    lacking = [name for name, fits in needs.items() if not any(fits(kernel) for kernel in kernels)]
    return f"the installed packs have no kernel {lacking[0]}" if lacking else None
