"""Launches a routed kernel: allocates the results, copies inputs that the kernel cannot read, calls the plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ffpa_attn import recipes
from ffpa_attn.device import DeviceInfo, device_info
from ffpa_attn.launcher import MASK_KINDS, Launcher, MisalignedError, default_launcher
from ffpa_attn.layout import result_strides

if TYPE_CHECKING:
    from ffpa_attn.manifest import KernelInfo
    from ffpa_attn.problem import Problem

ALIGNMENT = 16  # bytes

Launch = Callable[..., "tuple[Tensor, Tensor | None]"]


def _stride_fault(tensor: Tensor) -> str | None:
    *outer, last = tensor.stride()
    *sizes, columns = tensor.shape
    if last != 1 and columns > 1:
        return f"its last dimension has stride {last}"
    item = tensor.element_size()
    for name, size, stride in zip(("batch", "head", "row"), sizes, outer, strict=True):
        if size > 1 and stride * item % ALIGNMENT != 0:
            return f"its {name} stride of {stride * item} bytes is not a multiple of {ALIGNMENT}"
    return None


def needs_copy(tensor: Tensor) -> str | None:
    """Why a kernel cannot read ``tensor`` [B, H, N, D] as it lies, so that a launch copies it, or None."""
    reason = _stride_fault(tensor)
    if reason is None and tensor.data_ptr() % ALIGNMENT != 0:
        reason = f"its data is not aligned to {ALIGNMENT} bytes"
    return reason


def output_strides(query: Tensor) -> tuple[int, int, int, int]:
    """Strides, in elements, of the output [B, H, N, D] for ``query``; see ``layout.result_strides``."""
    return result_strides(query.shape, query.stride())


def _allocator(query: Tensor, want_lse: bool) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
    # Results come from torch itself, not through tvm-ffi's allocator: that costs the same and gives tensors whose
    # storage belongs to a DLPack capsule, which `record_stream` and `resize_` do not know.
    strides = output_strides(query)
    shape, dtype, device = query.shape, query.dtype, query.device
    lse_shape, lse_strides = shape[:3], (shape[1] * shape[2], shape[2], 1)
    # empty_strided parses its arguments faster than empty does.
    empty_like, empty_strided, float32 = torch.empty_like, torch.empty_strided, torch.float32
    like = query.stride() == strides  # then empty_like, the cheaper call, gives these strides

    def allocate(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
        out = empty_like(tensor) if like else empty_strided(shape, strides, dtype=dtype, device=device)
        if not want_lse:
            return out, None
        return out, empty_strided(lse_shape, lse_strides, dtype=float32, device=device)

    return allocate


def _philox_arguments(philox: tuple[Any, ...]) -> tuple[Any, ...]:
    if not philox:
        return ()
    seed, offset, *added = philox
    if isinstance(seed, int):
        seed = (seed + 2**63) % 2**64 - 2**63  # the native side takes the 64 bits as a signed number
    return seed, offset, added[0] if added else 0


def prepare(
    kernel: KernelInfo,
    image: bytes | Callable[[], bytes],
    problem: Problem,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    want_lse: bool,
    *,
    launcher: Launcher | None = None,
    device: DeviceInfo | None = None,
) -> Launch:
    """A function ``launch(query, key, value, attn_mask=None, philox=()) -> (out, lse or None)`` for calls whose
    tensors have the shapes, strides, dtypes and device of the ones given here.

    ``query`` [B, Hq, Nq, D], ``key`` and ``value`` [B, Hkv, Nkv, D], ``attn_mask`` expanded to [B, Hq, Nq, Nkv] with
    stride 0 where it is broadcast. ``image`` is the kernel's cubin, or a function that reads it, called at most once a
    process. ``out`` has query's shape and dtype and the strides of ``output_strides``; ``lse`` is [B, Hq, Nq] float32.
    For a problem with dropout ``philox`` is (seed, offset), two numbers, or (seed, offset, added), two int64 scalars on
    the device, as a graph capture has them, and a number added to the offset. An input that ``needs_copy`` is copied in
    each call. ``launcher`` and ``device`` are the process's launcher and the problem's device unless given.

    Raises ``DriverNotFoundError``, ``LaunchError`` and ``ValueError``; ``launch`` itself raises ``LaunchError``.
    """
    launcher = default_launcher() if launcher is None else launcher
    device = device_info(problem.device_index) if device is None else device
    spec = recipes.launch_spec(kernel, problem, device)
    launches = [(launcher.kernel(kernel, image), spec)]
    facts = {
        "causal": bool(problem.is_causal),
        "scale": float(problem.scale),
        "mask_kind": MASK_KINDS[problem.mask_kind],
        "dropout_p": float(problem.dropout_p),
    }
    allocate = _allocator(query, want_lse)
    plans: dict[tuple[bool, ...], Callable[..., None]] = {}  # by which of query, key, value are copied

    def copied_call(tensors: tuple[Tensor, ...], attn_mask: Tensor | None, rest: tuple[Any, ...]) -> None:
        copied = tuple(needs_copy(tensor) is not None for tensor in tensors)
        # clone, because contiguous() keeps a contiguous tensor that only starts at a wrong address.
        query, key, value = (
            tensor.clone(memory_format=torch.contiguous_format) if copy else tensor
            for tensor, copy in zip(tensors, copied, strict=True)
        )
        plan = plans.get(copied)
        if plan is None:
            plan = plans[copied] = launcher.plan(launches, facts, query, key, value, attn_mask)
        plan(query, key, value, attn_mask, *rest)

    if any(needs_copy(tensor) is not None for tensor in (query, key, value)):

        def launch_copied(
            query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, philox: tuple[Any, ...] = ()
        ) -> tuple[Tensor, Tensor | None]:
            out, lse = allocate(query)
            copied_call((query, key, value), attn_mask, (out, lse, *_philox_arguments(philox)))
            return out, lse

        return launch_copied

    plan = launcher.plan(launches, facts, query, key, value, attn_mask)

    def launch(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, philox: tuple[Any, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        out, lse = allocate(query)
        rest = _philox_arguments(philox) if philox else ()
        try:
            plan(query, key, value, attn_mask, out, lse, *rest)
        except MisalignedError:
            copied_call((query, key, value), attn_mask, (out, lse, *rest))
        return out, lse

    return launch


def run(
    kernel: KernelInfo,
    image: bytes | Callable[[], bytes],
    problem: Problem,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    want_lse: bool = False,
    philox: tuple[Any, ...] = (),
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """``prepare`` and one call of what it returns; same arguments and errors."""
    launch = prepare(kernel, image, problem, query, key, value, attn_mask, want_lse, **options)
    return launch(query, key, value, attn_mask, philox)


def empty_result(problem: Problem, query: Tensor, want_lse: bool = True) -> tuple[Tensor, Tensor | None]:
    """The result of a problem without queries or without keys: zeros, and a log-sum-exp of -inf."""
    shape = (problem.batch, problem.heads, problem.q_len, problem.head_dim)
    out = torch.empty_strided(shape, output_strides(query), dtype=query.dtype, device=query.device).zero_()
    lse = torch.full(shape[:3], -math.inf, dtype=torch.float32, device=query.device) if want_lse else None
    return out, lse
