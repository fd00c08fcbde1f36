"""Backends: what a caller can ask for. Plain data, usable without torch."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar


class Hint(enum.Enum):
    """The kernel implementation that a `CUDABackend` asks for."""

    AUTO = "auto"
    NATIVE = "native"
    TMA = "tma"
    CUTE = "cute"
    CUTE_TMA = "cute_tma"
    CUTE_TMA_FP8 = "cute_tma_fp8"
    CUTE_TMA_FP4 = "cute_tma_fp4"


@dataclass(frozen=True)
class Backend:
    """Base of all backends; frozen and hashable.

    Attributes:
        spec: the backend as text: its name, and a line "field=value" for each field that differs from its default.
            Made once: every call hashes it, and it is what a compiled graph can hold.
    """

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        lines = [self.name]
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                lines.append(f"{f.name}={value!r}")
        object.__setattr__(self, "spec", "\n".join(lines))

    if TYPE_CHECKING:
        spec: ClassVar[str]  # set on the instance; no field

    def __hash__(self) -> int:
        return hash(self.spec)


@dataclass(frozen=True)
class SDPABackend(Backend):
    """PyTorch's scaled_dot_product_attention, with tail-aligned causal and zeros for fully masked rows."""

    name: ClassVar[str] = "sdpa"
    __hash__ = Backend.__hash__


@dataclass(frozen=True)
class ReferenceBackend(Backend):
    """The plain PyTorch reference of `ffpa_attn.reference`, on the device of the inputs; slow and exact."""

    name: ClassVar[str] = "reference"
    __hash__ = Backend.__hash__


@dataclass(frozen=True)
class CUDABackend(Backend):
    """The CUDA kernels; forward only.

    Attributes:
        acc: precision in which the matrix products accumulate, "f32" or "f16". bf16 inputs need "f32".
        stages: depth of the load pipeline; None chooses by implementation and arch. The nearest compiled depth is
            used.
        enable_tma, enable_cute: the implementation: neither NATIVE, one TMA or CUTE, both CUTE_TMA. Both None chooses
            the fastest family of the device; one None counts as False.
        enable_fp8, enable_fp4: quantised attention on fp16/bf16 inputs; at most one of the two.
        force_fp8_sm89: use the FP8 kernels without TMA also where the TMA ones exist.
        tensor_layout: "HND" for [B, H, N, D] or "NHD" for [B, N, H, D], inputs and output alike.
        kernel: use the kernel with this id and no other, for tests and measurements.
        backward: always False; training goes to SDPA.

        fp8_smooth_k: subtract the mean of K over the sequence before quantising.
        fp8_smooth_v: subtract the mean of V and add it back at the end; needs per-channel V.
        fp8_q_quant_method, fp8_k_quant_method: scale groups of Q and K, "per_block" or "per_thread".
        fp8_v_quant_method: scale groups of V, "per_channel" or "per_block".
        fp8_qk_mm_type: type of the QK product, "fp8" or "int8".
        fp8_pv_acc_type: accumulator of the PV product, "f32" or "f16".
        fp8_hadamard, fp4_hadamard: rotate Q and K by a Hadamard matrix before quantising.
        fp8_hybrid, fp4_hybrid: first query rows in fp16/bf16, the rest quantised; None means on when causal.
        fp8_hybrid_n_early, fp4_hybrid_n_early: how many rows that is, a positive multiple of 128.
        fp4_pv_mm_type: type of the PV product, "fp4" (NVFP4) or "fp8" (MXFP8).
        fp4_smooth_v: subtract the mean of V and add it back at the end.

    Raises:
        ValueError, TypeError: a field has a value that is not allowed, or two fields contradict each other.
    """

    name: ClassVar[str] = "cuda"
    __hash__ = Backend.__hash__

    acc: str = "f32"
    stages: int | None = None
    enable_tma: bool | None = None
    enable_cute: bool | None = None
    enable_fp8: bool = False
    enable_fp4: bool = False
    force_fp8_sm89: bool = False
    tensor_layout: str = "HND"
    kernel: str | None = None
    backward: bool = False

    fp8_smooth_k: bool = True
    fp8_smooth_v: bool = False
    fp8_q_quant_method: str = "per_block"
    fp8_k_quant_method: str = "per_block"
    fp8_v_quant_method: str = "per_channel"
    fp8_qk_mm_type: str = "fp8"
    fp8_pv_acc_type: str = "f32"
    fp8_hadamard: bool = False
    fp8_hybrid: bool | None = None
    fp8_hybrid_n_early: int = 256
    fp4_hadamard: bool = False
    fp4_hybrid: bool | None = None
    fp4_hybrid_n_early: int = 256
    fp4_pv_mm_type: str = "fp4"
    fp4_smooth_v: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            _choice(name, getattr(self, name), allowed)
        for name in _FLAGS:
            _flag(name, getattr(self, name), optional=False)
        for name in _OPTIONAL_FLAGS:
            _flag(name, getattr(self, name), optional=True)
        if self.stages is not None:
            _positive("stages", self.stages, multiple=1)
        for name in ("fp8_hybrid_n_early", "fp4_hybrid_n_early"):
            _positive(name, getattr(self, name), multiple=128)
        if self.kernel is not None and not isinstance(self.kernel, str):
            raise TypeError(f"CUDABackend: kernel must be a kernel id (str) or None, got {self.kernel!r}")
        self._check_combinations()
        super().__post_init__()

    def _check_combinations(self) -> None:
        if self.backward:
            raise ValueError(
                "CUDABackend: backward=True is not supported, the kernels are forward-only; train with SDPABackend()"
            )
        if self.enable_fp8 and self.enable_fp4:
            raise ValueError("CUDABackend: enable_fp8=True and enable_fp4=True exclude each other, set one of them")
        if self.fp8_smooth_v and self.fp8_v_quant_method != "per_channel":
            raise ValueError(
                "CUDABackend: fp8_smooth_v=True needs fp8_v_quant_method='per_channel', "
                f"got {self.fp8_v_quant_method!r}"
            )
        # A knob of a path that is not enabled would have no effect; say so instead of ignoring it.
        for prefix, enabled in (("fp8", self.enable_fp8), ("fp4", self.enable_fp4)):
            if not enabled:
                for f in fields(self):
                    if f.name.startswith(f"{prefix}_") and getattr(self, f.name) != f.default:
                        raise ValueError(
                            f"CUDABackend: {f.name}={getattr(self, f.name)!r} has no effect without "
                            f"enable_{prefix}=True"
                        )
        if self.force_fp8_sm89 and not self.enable_fp8:
            raise ValueError("CUDABackend: force_fp8_sm89=True has no effect without enable_fp8=True")

    @property
    def hint(self) -> Hint:
        """The implementation that the fields ask for."""
        return resolve_hint(self)


def resolve_hint(backend: CUDABackend) -> Hint:
    """enable_fp4 and enable_fp8 come before the (enable_tma, enable_cute) pair; both None is AUTO."""
    if backend.enable_fp4:
        return Hint.CUTE_TMA_FP4
    if backend.enable_fp8:
        return Hint.CUTE_TMA_FP8
    if backend.enable_tma is None and backend.enable_cute is None:
        return Hint.AUTO
    if backend.enable_tma:
        return Hint.CUTE_TMA if backend.enable_cute else Hint.TMA
    return Hint.CUTE if backend.enable_cute else Hint.NATIVE


_KINDS = (CUDABackend, SDPABackend, ReferenceBackend)
BACKENDS: dict[str, type[Backend]] = {kind.name: kind for kind in _KINDS}


@lru_cache(maxsize=256)
def decode(spec: str) -> Backend | None:
    """The backend with this `spec`; None for ""."""
    if not spec:
        return None
    name, *lines = spec.split("\n")
    values = (line.split("=", 1) for line in lines)
    return BACKENDS[name](**{field: ast.literal_eval(value) for field, value in values})


def resolve_backend(backend: Backend | str | None, forward_backend: Backend | str | None) -> Backend | None:
    """The one backend of a call from its two arguments; None when neither is given.

    Raises:
        ValueError: unknown name, or both are given and differ.
        TypeError: neither a name nor a backend.
    """
    if backend is None and isinstance(forward_backend, _KINDS):  # spares a usual call 0.1 us
        return forward_backend
    first = _as_backend("backend", backend)
    second = _as_backend("forward_backend", forward_backend)
    if first is not None and second is not None and first != second:
        raise ValueError(f"backend={first!r} and forward_backend={second!r} differ; give one of them")
    return first if first is not None else second


def _as_backend(argument: str, value: Any) -> Backend | None:
    if value is None or isinstance(value, _KINDS):
        return value  # type: ignore[no-any-return]
    names = ", ".join(repr(name) for name in BACKENDS)
    if isinstance(value, str):
        if value not in BACKENDS:
            raise ValueError(f"{argument}={value!r} is no backend; allowed are {names} or a backend object")
        return _DEFAULTS[value]
    raise TypeError(f"{argument} must be {names} or a backend object, got {type(value).__name__}")


_CHOICES: dict[str, tuple[str, ...]] = {
    "acc": ("f32", "f16"),
    "tensor_layout": ("HND", "NHD"),
    "fp8_q_quant_method": ("per_block", "per_thread"),
    "fp8_k_quant_method": ("per_block", "per_thread"),
    "fp8_v_quant_method": ("per_channel", "per_block"),
    "fp8_qk_mm_type": ("fp8", "int8"),
    "fp8_pv_acc_type": ("f32", "f16"),
    "fp4_pv_mm_type": ("fp4", "fp8"),
}
_FLAGS = (
    "enable_fp8",
    "enable_fp4",
    "force_fp8_sm89",
    "backward",
    "fp8_smooth_k",
    "fp8_smooth_v",
    "fp8_hadamard",
    "fp4_hadamard",
    "fp4_smooth_v",
)
_OPTIONAL_FLAGS = ("enable_tma", "enable_cute", "fp8_hybrid", "fp4_hybrid")


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"CUDABackend: {name}={value!r}; allowed are {', '.join(repr(a) for a in allowed)}")


def _flag(name: str, value: object, *, optional: bool) -> None:
    if isinstance(value, bool) or (optional and value is None):
        return
    allowed = "True, False or None" if optional else "True or False"
    raise TypeError(f"CUDABackend: {name}={value!r}; allowed are {allowed}")


def _positive(name: str, value: object, *, multiple: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"CUDABackend: {name}={value!r}; an int is needed")
    if value < 1 or value % multiple:
        what = "a positive int" if multiple == 1 else f"a positive multiple of {multiple}"
        raise ValueError(f"CUDABackend: {name}={value}; allowed is {what}")


_DEFAULTS: dict[str, Backend] = {name: kind() for name, kind in BACKENDS.items()}
