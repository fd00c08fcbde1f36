"""Launches a routed kernel: allocates the results, copies inputs that the kernel cannot read, calls the plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

# What Inductor's code allocates with: torch.empty_strided without a way through the dispatcher, on the current device.
# It is private to torch, which may drop it.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_empty_strided_cuda: Callable[..., Tensor] | None = getattr(_guards, "_empty_strided_cuda", None)

Result = Tensor | tuple[Tensor, Tensor]
Launch = Callable[..., "Result | None"]


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


def _allocator(query: Tensor) -> Callable[[], Tensor]:
    """A function that gives an output for queries with the shape, strides, dtype and device of this one."""
    # Results come from torch itself, not through tvm-ffi's allocator: that costs the same and gives tensors whose
    # storage belongs to a DLPack capsule, which `record_stream` and `resize_` do not know.
    shape, strides, dtype, device = tuple(query.shape), output_strides(query), query.dtype, query.device
    # empty_strided parses its arguments faster than empty does.
    usual = partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    if device.type != "cuda" or _empty_strided_cuda is None:
        return usual
    quick = partial(_empty_strided_cuda, shape, strides, dtype)
    if torch.cuda.device_count() == 1:
        return quick
    index, current_device = device.index, torch._C._cuda_getDevice
    return lambda: quick() if current_device() == index else usual()


def _philox_arguments(philox: tuple[Any, ...]) -> tuple[Any, ...]:
    """(seed, offset, added) as the native side takes them: offsets in blocks of four words."""
    if not philox:
        return ()
    seed, offset, added = philox if len(philox) == 3 else (*philox, 0)
    if isinstance(offset, int):
        if offset % 4:
            raise ValueError(f"philox offset must be a multiple of 4, as those of torch's generators are; got {offset}")
        offset //= 4
    if isinstance(seed, int):
        seed = (seed + 2**63) % 2**64 - 2**63  # the native side takes the 64 bits as a signed number
    return seed, offset, added


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
    merge: tuple[KernelInfo, bytes | Callable[[], bytes]] | None = None,
    launcher: Launcher | None = None,
    device: DeviceInfo | None = None,
) -> Launch:
    """A function ``launch(query, key, value, attn_mask=None, philox=())`` for calls whose tensors have the shapes,
    strides, dtypes and device of the ones given here. It returns out, or with ``want_lse`` (out, lse); for tensors
    that do not fit it returns None and launches nothing.

    ``query`` [B, Hq, Nq, D], ``key`` and ``value`` [B, Hkv, Nkv, D], ``attn_mask`` expanded to [B, Hq, Nq, Nkv] with
    stride 0 where it is broadcast. ``image`` is the kernel's cubin, or a function that reads it, called at most once a
    process. ``out`` has query's shape and dtype and the strides of ``output_strides``; ``lse`` is [B, Hq, Nq] float32.
    For a problem with dropout ``philox`` is (seed, offset), two numbers, or (seed, offset, added), two int64 scalars on
    the device, as a graph capture has them, and a number added to the offset. ``merge`` is the kernel, with its cubin,
    that joins partial results where ``kernel`` splits the keys. An input that ``needs_copy`` is copied in
    each call. ``launcher`` and ``device`` are the process's launcher and the problem's device unless given.

    Raises ``DriverNotFoundError``, ``LaunchError`` and ``ValueError``; ``launch`` itself raises ``LaunchError``.
    """
    launcher = default_launcher() if launcher is None else launcher
    device = device_info(problem.device_index) if device is None else device
    spec = recipes.launch_spec(kernel, problem, device)
    launches = [(launcher.kernel(kernel, image), spec)]
    splits = spec.splits
    if splits > 1:
        if merge is None:
            raise ValueError(f"kernel {kernel.id} splits the keys and comes without a kernel that merges")
        launches.append((launcher.kernel(*merge), recipes.launch_spec(merge[0], problem, device)))
    facts = {
        "causal": bool(problem.is_causal),
        "scale": float(problem.scale),
        "mask_kind": MASK_KINDS[problem.mask_kind],
        "dropout_p": float(problem.dropout_p),
    }
    allocate = _allocator(query)
    lse_shape, lse_device = query.shape[:3], query.device
    partial_shape = (splits, *query.shape)
    plans: dict[tuple[bool, ...], Callable[..., bool]] = {}  # by which of query, key, value are copied

    def copied_call(tensors: tuple[Tensor, ...], attn_mask: Tensor | None, rest: tuple[Any, ...]) -> bool:
        copied = tuple(needs_copy(tensor) is not None for tensor in tensors)
        # clone, because contiguous() keeps a contiguous tensor that only starts at a wrong address.
        query, key, value = (
            tensor.clone(memory_format=torch.contiguous_format) if copy else tensor
            for tensor, copy in zip(tensors, copied, strict=True)
        )
        plan = plans.get(copied)
        if plan is None:
            plan = plans[copied] = launcher.plan(launches, facts, query, key, value, attn_mask)
        return plan(query, key, value, attn_mask, *rest)

    if any(needs_copy(tensor) is not None for tensor in (query, key, value)):
        # The plan knows the copies, so what the copies are made of is compared here.
        given = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in (query, key, value)]

        def plan(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *rest: Any) -> bool:
            tensors = (query, key, value)
            if [(t.shape, t.stride(), t.dtype, t.device) for t in tensors] != given:
                return False
            return copied_call(tensors, attn_mask, rest)

    else:
        plan = launcher.plan(launches, facts, query, key, value, attn_mask)

    def launch(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, philox: tuple[Any, ...] = ()
    ) -> Result | None:
        out = allocate()
        lse = torch.empty(lse_shape, dtype=torch.float32, device=lse_device) if want_lse else None
        rest = _philox_arguments(philox) if philox else ()
        if splits > 1:
            partial_o = torch.empty(partial_shape, dtype=torch.float32, device=lse_device)
            partial_stats = torch.empty((*partial_shape[:-1], 2), dtype=torch.float32, device=lse_device)
            rest = (*rest, partial_o, partial_stats)
        try:
            fits = plan(query, key, value, attn_mask, out, lse, *rest)
        except MisalignedError:
            fits = copied_call((query, key, value), attn_mask, (out, lse, *rest))
        if not fits:
            return None
        return out if lse is None else (out, lse)

    if want_lse or splits > 1 or problem.dropout_p > 0.0:
        return launch

    def launch_output(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor | None:
        # `launch` without what this kind of call does not need; the host time of a call counts in microseconds.
        out = allocate()
        try:
            return out if plan(query, key, value, attn_mask, out, None) else None
        except MisalignedError:
            return out if copied_call((query, key, value), attn_mask, (out, None)) else None

    return launch_output


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
    """``prepare`` and one call of what it returns, as (out, lse or None); same arguments and errors."""
    launch = prepare(kernel, image, problem, query, key, value, attn_mask, want_lse, **options)
    result = launch(query, key, value, attn_mask, philox) if philox else launch(query, key, value, attn_mask)
    assert result is not None  # they are the tensors of the plan
    return result if isinstance(result, tuple) else (result, None)
