"""What to type to get a kernel that no installed pack holds: the wheel, or the flags of a source build.

The flags are those in which the kernel departs from a source build without flags, see docs/build-flags.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .backends import Hint
from .manifest import KernelInfo

# What a source build without flags compiles; a test compares it with variants/presets.toml.
DEFAULT_MAX_HEAD_DIM = 512
DEFAULT_STAGES = (2, 3)
DEFAULT_FEATURES = ("bias", "dropout")

# Beyond these the quantised kernels stream the head dim, which a build has to be told to compile.
_QUANTISED = {Hint.CUTE_TMA_FP8: ("fp8", 224), Hint.CUTE_TMA_FP4: ("fp4", 256)}
_ID = re.compile(r"\S+-(?P<arch>sm_\d+[af]?)-(?P<dtype>bf16|fp16)-d(?P<d>\d+)-s(?P<stages>\d+)(?P<rest>(-[a-z0-9_]+)*)")


@dataclass(frozen=True)
class Missing:
    """The kernel that a call needs. `kernel` is the id that it named, or None; `capability` that of the device."""

    capability: tuple[int, int]
    hint: Hint
    dtype: str
    acc: str
    head_dim: int
    features: frozenset[str]
    kernel: str | None = None


def remedy(missing: Missing, seen: Iterable[KernelInfo]) -> str:
    """The sentence that says how to get a kernel; `seen` are the kernels of the installed packs."""
    seen = tuple(seen)
    if missing.kernel is not None and _ID.fullmatch(missing.kernel) is None:
        return _no_such_id(missing.kernel, [kernel.id for kernel in seen])
    capability = "{}.{}".format(*missing.capability)
    here = [kernel for kernel in seen if capability in kernel.capabilities]
    extra = _QUANTISED[missing.hint][0] if missing.hint in _QUANTISED else None
    if extra is None and missing.capability[0] == 12:
        extra = "sm120"
    install = f"Install it with: pip install 'ffpa[{extra}]', or build" if extra and not here else "Build"
    options, variables = zip(*_flags(missing, here), strict=True)
    return (
        f"{install} it with: python -m ffpa_build install {' '.join(o for o in options if o)} "
        f"(in a source tree; the variables of a wheel build: {' '.join(v for v in variables if v)})"
    )


def _no_such_id(kernel: str, known: list[str]) -> str:
    """No build brings a kernel with this name, so none is advised."""
    close = difflib.get_close_matches(kernel, known, n=3)
    hint = f"; close to it are {', '.join(close)}" if close else ""
    return (
        f"kernel={kernel!r} is no kernel id{hint}. An id looks like native.split_d-sm_90a-bf16-d512-s3; "
        "print(explain(...)) lists those of the installed packs"
    )


def _flags(missing: Missing, here: list[KernelInfo]) -> list[tuple[str, str]]:
    """Options with the variables that say the same."""
    arch = "{}{}".format(*missing.capability)
    dtype, acc, head_dim, features = missing.dtype, missing.acc, missing.head_dim, missing.features
    stages, target = DEFAULT_STAGES[0], None
    named = _ID.fullmatch(missing.kernel) if missing.kernel is not None else None
    if named is not None:
        rest = named["rest"].split("-")
        arch, dtype, head_dim, stages = named["arch"], named["dtype"], int(named["d"]), int(named["stages"])
        acc = "f16" if "accf16" in rest else "f32"
        features = frozenset(rest) & {"bias", "bias32", "dropout"}
        target = next((word.removeprefix("for_") for word in rest if word.startswith("for_")), None)
    flags = [(f"--arch {target or arch}", f"FFPA_BUILD_ARCH={target or arch}")]
    if target is not None:
        flags.append(("--preset emulated", "FFPA_BUILD_PRESET=emulated"))
    if dtype == "fp16":
        flags.append(("--dtype bf16,fp16", "ENABLE_FFPA_CUDA_INPUT_FP16=1"))
    if acc == "f16":
        flags.append(("--acc f32,f16", "ENABLE_FFPA_F16_ACC=1"))
    if "bias32" in features:
        flags.append((f"--features {','.join((*DEFAULT_FEATURES, 'bias32'))}", "ENABLE_FFPA_CUDA_MASK_FP32=1"))
    if head_dim > DEFAULT_MAX_HEAD_DIM or all(kernel.head_dim < head_dim for kernel in here):
        head_dims = f"default,{head_dim}" if head_dim > DEFAULT_MAX_HEAD_DIM or named is not None else "default"
        flags.append((f"--headdim {head_dims}", f"FFPA_DEV_HEADDIMS={head_dims}"))
    if stages not in DEFAULT_STAGES:
        text = ",".join(map(str, (*DEFAULT_STAGES, stages)))
        flags.append((f"--stages {text}", f"FFPA_BUILD_STAGES={text}"))
    return flags + _families(missing.hint, head_dim)


def _families(hint: Hint, head_dim: int) -> list[tuple[str, str]]:
    if hint in _QUANTISED:
        flags = [("--ext all", "ENABLE_FFPA_CUTE_EXT=1")]
        if head_dim > _QUANTISED[hint][1]:
            flags.append(("--quant-split-d", "ENABLE_FFPA_QUANT_SPLIT_D=1"))
        return flags
    if hint in (Hint.CUTE, Hint.CUTE_TMA):
        return [("--ext all", "ENABLE_FFPA_CUTE_EXT=1")]
    return [("--ext all", "ENABLE_FFPA_TMA_EXT=1")] if hint is Hint.TMA else []
