"""Which kernel, or which other implementation, a problem goes to. Pure: a walk over the rows of the manifests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from .backends import Backend, CUDABackend, Hint, ReferenceBackend, SDPABackend
from .config import SMALL_D_VARIABLE
from .gates import Gates
from .packs import Pack, PackSet
from .recipes import MASK_ALIGNMENT, MAX_MASK_ALIGNMENT, busiest_share
from .remedy import Missing, remedy

if TYPE_CHECKING:
    from .device import DeviceInfo
    from .manifest import KernelInfo
    from .problem import Problem

# Optional kernel features that change what a kernel computes; a kernel serves a call that needs exactly its own.
CALL_FEATURES = frozenset({"bias", "bias32", "dropout"})
_MASK_FEATURE = {"none": None, "boolean": "bias", "additive": "bias", "additive_f32": "bias32"}
_MASK_FEATURES = frozenset({"bias", "bias32"})
# Recipes whose kernels split the keys over blocks and need a merge kernel after them.
SPLITTING_RECIPES = frozenset({"split_kv"})
# CuTe kernels are compiled for multiples of this; others of the specification go to the native family.
_CUTE_HEAD_DIM_MULTIPLE = 32


@dataclass(frozen=True)
class Reason:
    """Why a call goes to SDPA.

    Attributes:
        code: stable name: "requested", "device", "transform", "gradients", "dtype", "head_dim", "value_dim", "small_d",
            "q_len", "kv_len", "acc" or "no_kernel".
        text: the sentence for people.
    """

    code: str
    text: str


TRANSFORM = Reason("transform", "a torch.func transform such as vmap is active, and its tensors have no data to read")
GRADIENTS = Reason("gradients", "gradients are needed and the kernels are forward-only; use torch.no_grad()")


@dataclass(frozen=True)
class Candidate:
    """A kernel that was looked at; `lost` says why it was not chosen, None for the chosen one."""

    pack: str
    kernel: KernelInfo
    lost: str | None


@dataclass(frozen=True)
class KernelRoute:
    """The call runs `kernel` of `pack`. `cast_mask`: the float32 mask is converted to the query's dtype first.

    `merge` is the kernel of the pack that joins the results where `kernel` splits the keys. `peers` are kernels of the
    pack that differ from `kernel` in their tiles (`row_cost`): the lengths of a call decide among them.
    """

    kernel: KernelInfo
    pack: Pack
    candidates: tuple[Candidate, ...] = ()
    cast_mask: bool = False
    merge: KernelInfo | None = None
    peers: tuple[KernelInfo, ...] = ()


@dataclass(frozen=True)
class FallbackRoute:
    """The call runs PyTorch's SDPA."""

    reason: Reason
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class ReferenceRoute:
    """The call runs the PyTorch reference."""

    candidates: tuple[Candidate, ...] = ()


Route = KernelRoute | FallbackRoute | ReferenceRoute
Choices = dict["_Wanted", "KernelRoute | FallbackRoute"]


def route(
    problem: Problem,
    device: DeviceInfo | None,
    backend: Backend | None,
    packs: PackSet,
    gates: Gates | None = None,
    choices: Choices | None = None,
) -> Route:
    """Choose where `problem` runs.

    Args:
        device: the CUDA device of the tensors; None when they are elsewhere.
        backend: what the caller asked for; None means a kernel where one applies, else SDPA.
        choices: kernels chosen before among these packs; read and added to. Lengths, batches and heads matter
            only among the peers of a choice, so a decode loop, whose calls differ in length, walks the manifests once.
    """
    gates = Gates() if gates is None else gates
    if isinstance(backend, ReferenceBackend):
        return ReferenceRoute()
    if isinstance(backend, SDPABackend):
        return FallbackRoute(Reason("requested", "SDPABackend was asked for"))
    cuda = backend if isinstance(backend, CUDABackend) else CUDABackend()
    reason = _gate(problem, device, cuda, gates)
    if reason is not None:
        return FallbackRoute(reason)
    assert device is not None
    known = {} if choices is None else choices
    chosen = _choose(problem, device, cuda, packs, gates, known)
    if isinstance(chosen, KernelRoute) and chosen.peers:
        return _fitted(chosen, problem, device)
    if isinstance(chosen, FallbackRoute) and problem.mask_kind == "additive_f32":
        # The copy is laid out as kernels want it, unless columns have to be broadcast or gathered.
        alignment = MAX_MASK_ALIGNMENT if problem.mask_alignment else 0
        copied = replace(problem, mask_kind="additive", mask_alignment=alignment)
        recast = _choose(copied, device, cuda, packs, gates, known)
        if isinstance(recast, KernelRoute):
            # Only here: the choice is also that of calls whose masks have the query's dtype.
            return replace(recast, cast_mask=True)
    return chosen


def _fitted(chosen: KernelRoute, problem: Problem, device: DeviceInfo) -> KernelRoute:
    """`chosen`, or its peer whose tiles divide this problem best among the multiprocessors."""
    kernels = (chosen.kernel, *chosen.peers)
    best = min(kernels, key=lambda kernel: busiest_share(kernel, problem, device))
    if best is chosen.kernel:
        return chosen
    why = f"tiles of {best.tile_m} rows suit this call and {device.sm_count} multiprocessors better than those of"
    rest = [
        Candidate(c.pack, c.kernel, f"{why} {c.kernel.tile_m}" if c.kernel in kernels else c.lost)
        for c in chosen.candidates
        if c.kernel is not best
    ]
    return replace(chosen, kernel=best, candidates=(Candidate(chosen.pack.name, best, None), *rest))


def _gate(problem: Problem, device: DeviceInfo | None, backend: CUDABackend, gates: Gates) -> Reason | None:
    """The first reason not to look for a kernel at all."""
    d, nq, nkv = problem.head_dim, problem.q_len, problem.kv_len
    if device is None:
        return Reason("device", f"the tensors are on {problem.device_type!r}, kernels need a CUDA device")
    if problem.needs_grad:
        return GRADIENTS
    if problem.dtype not in ("bf16", "fp16"):
        return Reason("dtype", f"dtype {problem.dtype} has no kernels; allowed are fp16 and bf16")
    if problem.dtype == "bf16" and backend.acc == "f16":
        return Reason("acc", "bf16 inputs cannot accumulate in f16; use acc='f32'")
    if problem.value_dim != d:
        return Reason("value_dim", f"value has head dim {problem.value_dim} and query has {d}; kernels need them equal")
    if d > gates.max_head_dim:
        return Reason("head_dim", f"head dim {d} is larger than {gates.max_head_dim}")
    if d % gates.head_dim_multiple:
        return Reason("head_dim", f"head dim {d} is not a multiple of {gates.head_dim_multiple}")
    if not gates.allow_small_d and d <= gates.small_head_dim:
        return Reason("small_d", f"head dim {d} <= {gates.small_head_dim} and {SMALL_D_VARIABLE}=0")
    if gates.kind(problem, device.capability) is not None:
        return None
    if gates.decode_q_len <= nq < gates.min_q_len:
        return Reason("q_len", f"{nq} queries: from {gates.decode_q_len} to {gates.min_q_len - 1} SDPA is used")
    return Reason("kv_len", f"{nkv} keys: below {gates.min_kv_len} SDPA is used")


def _choose(
    problem: Problem,
    device: DeviceInfo,
    backend: CUDABackend,
    packs: PackSet,
    gates: Gates,
    choices: Choices,
) -> KernelRoute | FallbackRoute:
    wanted = _Wanted.of(problem, device, backend, gates)
    chosen = choices.get(wanted)
    if chosen is None:
        chosen = choices[wanted] = _walk(wanted, packs)
    return chosen


def _walk(wanted: _Wanted, packs: PackSet) -> KernelRoute | FallbackRoute:
    eligible: list[tuple[tuple[object, ...], Pack, KernelInfo]] = []
    lost: list[Candidate] = []
    for pack in packs.packs:
        for kernel in pack.kernels:
            why = wanted.refuses(kernel)
            if why is None and kernel.recipe in SPLITTING_RECIPES and _merge_of(kernel, pack) is None:
                why = "the pack lacks its merge kernel"
            if why is None:
                eligible.append((wanted.order(kernel), pack, kernel))
            else:
                lost.append(Candidate(pack.name, kernel, why))
    if not eligible:
        text = wanted.missing(packs, lost)
        return FallbackRoute(Reason("no_kernel", text), tuple(lost))
    eligible.sort(key=lambda item: item[0])
    key, pack, kernel = eligible[0]
    candidates = [Candidate(pack.name, kernel, None)]
    candidates += [Candidate(p.name, k, wanted.compare(kernel, k)) for _, p, k in eligible[1:]]
    merge = _merge_of(kernel, pack) if kernel.recipe in SPLITTING_RECIPES else None
    peers: list[KernelInfo] = []
    if kernel.row_cost:
        before = key[: wanted.PLACE_OF_ORDER]
        equals = [(p, k) for other, p, k in eligible[1:] if other[: wanted.PLACE_OF_ORDER] == before and k.row_cost]
        peers = [k for p, k in equals if p is pack and (k.stages, k.recipe) == (kernel.stages, kernel.recipe)]
    return KernelRoute(kernel, pack, (*candidates, *lost), merge=merge, peers=tuple(peers))


def _merge_of(kernel: KernelInfo, pack: Pack) -> KernelInfo | None:
    """The kernel that joins the results of a `kernel` that splits the keys."""
    wanted = (kernel.arch, kernel.capabilities, kernel.dtype)
    found = (k for k in pack.kernels if k.recipe == "merge" and (k.arch, k.capabilities, k.dtype) == wanted)
    return next(found, None)


@dataclass(frozen=True)
class _Wanted:
    """What a kernel must have, and the order among those that have it: all that the choice depends on."""

    dtype: str
    head_dim: int
    device: DeviceInfo
    backend: CUDABackend
    hint: Hint
    kind: str  # "prefill" or "decode"
    features: frozenset[str]
    mask_alignment: int

    @classmethod
    def of(cls, problem: Problem, device: DeviceInfo, backend: CUDABackend, gates: Gates) -> _Wanted:
        mask = _MASK_FEATURE[problem.mask_kind]
        dropout = "dropout" if problem.dropout_p > 0.0 else None
        features = frozenset(f for f in (mask, dropout) if f is not None)
        kind = gates.kind(problem, device.capability)
        assert kind is not None  # else a gate has sent it to SDPA
        alignment = problem.mask_alignment
        return cls(problem.dtype, problem.head_dim, device, backend, backend.hint, kind, features, alignment)

    def refuses(self, kernel: KernelInfo) -> str | None:
        """Why `kernel` cannot run the problem, or None."""
        capability = "{}.{}".format(*self.device.capability)
        if capability not in kernel.capabilities:
            return f"loads on {', '.join(kernel.capabilities)}, the device is {capability}"
        if kernel.dtype != self.dtype:
            return f"dtype {kernel.dtype}, not {self.dtype}"
        if kernel.acc != self.backend.acc:
            return f"acc {kernel.acc}, not {self.backend.acc}"
        if kernel.head_dim < self.head_dim:
            return f"head dim {kernel.head_dim} < {self.head_dim}"
        if self.kind not in kernel.problems and not (self.kind == "decode" and "prefill" in kernel.problems):
            return f"for {'/'.join(kernel.problems)}, not {self.kind}"
        features = CALL_FEATURES.intersection(kernel.features)
        if features != self.features:
            return f"features {_names(features)}, needed are {_names(self.features)}"
        if self.features & _MASK_FEATURES and self.mask_alignment < MASK_ALIGNMENT.get(kernel.recipe, 0):
            return f"reads masks with dense columns and rows that start on {MASK_ALIGNMENT[kernel.recipe]} bytes"
        if kernel.smem_bytes > self.device.smem_block_optin:
            return f"needs {kernel.smem_bytes} bytes of shared memory a block, {self.device.name} has " + str(
                self.device.smem_block_optin
            )
        if self.backend.kernel is not None:
            return None if kernel.id == self.backend.kernel else f"kernel={self.backend.kernel!r} was asked for"
        if "-for_" in kernel.id:
            return "emulates another arch; only used when asked for with kernel="
        if self._place_of_hint(kernel) is None:
            return f"ext {kernel.ext} does not fit the hint {self.hint.value}"
        return None

    PLACE_OF_ORDER: ClassVar[int] = 5  # of the impl's order in the sort key

    def order(self, kernel: KernelInfo) -> tuple[object, ...]:
        """Sort key, the best first: each part is one rule of `compare`."""
        return (
            self._place_of_hint(kernel) or 0,
            # An arch that serves fewer capabilities is made for this device; then the newer one.
            (len(kernel.capabilities), -_arch_number(kernel)),
            self.kind not in kernel.problems,
            kernel.rank,
            kernel.head_dim,
            kernel.order,
            abs(kernel.stages - self._stages(kernel)),
            (kernel.stages, kernel.id),
        )

    def compare(self, best: KernelInfo, other: KernelInfo) -> str:
        """Why `other`, which could run the problem, comes after `best`."""
        rules = (
            "its ext comes later under the hint",
            f"arch {best.arch} is closer to the device than {other.arch}",
            f"a kernel for {self.kind} comes first",
            f"ext {best.ext} comes before {other.ext}",
            f"head dim {best.head_dim} is closer",
            f"{best.impl} comes before {other.impl}",
            f"stages {best.stages} is closer to {self._stages(other)}",
            "stands later in the order of stages and id",
        )
        return next(rule for rule, a, b in zip(rules, self.order(best), self.order(other), strict=True) if a != b)

    def _place_of_hint(self, kernel: KernelInfo) -> int | None:
        """0 when the kernel is what the hint names, 1 when it stands in for it, None when it does not fit."""
        tensor_maps = kernel.box_cols > 0
        quantised = kernel.ext in ("fp8", "fp4")
        if self.hint is Hint.CUTE_TMA_FP4:
            return 0 if kernel.ext == "fp4" else None
        if self.hint is Hint.CUTE_TMA_FP8:
            fits = kernel.ext == "fp8" and not (self.backend.force_fp8_sm89 and tensor_maps)
            return 0 if fits else None
        if self.hint is Hint.AUTO:
            # rank -1: the arch uses this ext only when it is named
            return None if quantised or kernel.rank < 0 else 0
        if self.hint is Hint.NATIVE:
            return 0 if kernel.ext == "native" else None
        if self.hint is Hint.TMA:
            fits = kernel.ext == "tma"
        else:
            fits = kernel.ext == "cute" and tensor_maps == (self.hint is Hint.CUTE_TMA)
        if fits or (kernel.ext == "native" and "decode" in kernel.problems and self.kind == "decode"):
            return 0  # decode kernels exist in the native family only
        return 1 if kernel.ext == "native" and self._native_stands_in() else None

    def _native_stands_in(self) -> bool:
        """Decode exists in the native family only; so do the calls that the CuTe kernels are not compiled for."""
        if self.kind == "decode":
            return True
        cute = self.hint in (Hint.CUTE, Hint.CUTE_TMA)
        return cute and (self.head_dim % _CUTE_HEAD_DIM_MULTIPLE != 0 or bool(self.features))

    def _stages(self, kernel: KernelInfo) -> int:
        if self.backend.stages is not None:
            return self.backend.stages
        return auto_stages(kernel.ext, self.device.capability)

    def missing(self, packs: PackSet, seen: Iterable[Candidate]) -> str:
        """The text of a KernelNotFoundError."""
        capability = "{}.{}".format(*self.device.capability)
        wanted = f"{self.kind} {self.dtype} acc={self.backend.acc} head dim {self.head_dim}"
        wanted += f" features {_names(self.features)}"
        if self.hint is not Hint.AUTO:
            wanted += f" implementation {self.hint.value}"
        if self.backend.kernel is not None:
            wanted += f" kernel {self.backend.kernel}"
        names = ", ".join(f"{pack.name} {pack.version}" for pack in packs.packs) or "none"
        text = f"no kernel for {wanted} on {self.device.name} (compute capability {capability}); packs seen: {names}"
        for rejected in packs.rejected:
            text += f"; turned away: {rejected.name} ({rejected.reason})"
        needed = Missing(
            self.device.capability,
            self.hint,
            self.dtype,
            self.backend.acc,
            self.head_dim,
            self.features,
            self.backend.kernel,
        )
        for candidate in seen:
            if candidate.kernel.id == self.backend.kernel:
                return f"{text}. That kernel is installed and does not serve this call: {candidate.lost}"
        return f"{text}. {remedy(needed, [candidate.kernel for candidate in seen])}"


def auto_stages(ext: str, capability: tuple[int, int]) -> int:
    """The pipeline depth that is aimed for when the caller gives none."""
    if ext in ("fp8", "fp4", "cute"):
        return 2
    return 4 if capability >= (9, 0) else 3


def _arch_number(kernel: KernelInfo) -> int:
    return int("".join(c for c in kernel.arch if c.isdigit()))


def _names(features: Iterable[str]) -> str:
    return "+".join(sorted(features)) or "none"
