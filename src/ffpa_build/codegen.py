"""Variant -> the text of its translation unit."""

from __future__ import annotations

from ffpa_build.matrix import Variant

# Every kernel template can ask for these; a feature that only some family declares is added for that family.
BASE_FEATURES = ("bias", "bias32", "dropout")
_CONSTANTS = {"bias32": "kBiasF32"}


def _constant(feature: str) -> str:
    return _CONSTANTS.get(feature) or "k" + "".join(part.capitalize() for part in feature.split("_"))


def generate(variant: Variant) -> str:
    """The source of one variant; see csrc/core/variant.cuh for what the fields mean."""
    impl = variant.impl
    features = dict.fromkeys((*BASE_FEATURES, *impl.features))
    lines = [
        f"// {variant.id}",
        '#include "core/kernel_entry.cuh"',
        f'#include "{impl.header}"',
        "",
        "struct Variant {",
        f"  static constexpr int kArch = {variant.arch.sm * 10};",
        f"  static constexpr int kSmemBlock = {variant.arch.smem_block};",
        f"  using Element = ffpa::{variant.dtype};",
        f"  static constexpr bool kAccF16 = {str(variant.acc == 'f16').lower()};",
        f"  static constexpr int kHeadDim = {variant.head_dim};",
        f"  static constexpr int kStages = {variant.stages};",
        *(
            f"  static constexpr bool {_constant(feature)} = {str(feature in variant.features).lower()};"
            for feature in features
        ),
        "};",
        "",
        f"FFPA_KERNEL({variant.entry}, {impl.kernel}<Variant>)",
        "",
    ]
    return "\n".join(lines)
