"""How each recipe launches a kernel: grid and tensor-map boxes from the manifest row, the problem and the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffpa_attn.device import DeviceInfo
    from ffpa_attn.manifest import KernelInfo
    from ffpa_attn.problem import Problem

MAX_BLOCKS = 2**31 - 1
MAX_BOX = 256  # elements of a box along a dimension
ELEMENT_BYTES = 2
# By recipe: the bytes on which the rows of a mask start, its columns dense, for kernels that read no other masks.
MASK_ALIGNMENT = {"wgmma": 16}
MAX_MASK_ALIGNMENT = 16


@dataclass(frozen=True)
class TensorMapBox:
    """What one bulk tensor copy moves: ``rows`` rows of ``cols`` elements; ``swizzle`` in bytes."""

    cols: int
    rows: int
    swizzle: int


@dataclass(frozen=True)
class LaunchSpec:
    """One kernel launch.

    ``grid`` in blocks; ``boxes`` of the tensor maps of Q, K and V, or none; ``q_tiles`` query tiles a head, a multiple
    of the kernel's cluster; ``splits`` parts of the keys, of ``kv_per_split`` keys each (a multiple of ``tile_n``);
    ``mask_alignment`` as in ``MASK_ALIGNMENT``, 1 for a kernel that reads any mask.
    """

    grid: tuple[int, int, int]
    boxes: tuple[TensorMapBox, ...]
    q_tiles: int
    splits: int
    kv_per_split: int
    mask_alignment: int = 1


def _ceil_to(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _checked_blocks(blocks: int, kernel: KernelInfo, problem: Problem) -> int:
    if blocks > MAX_BLOCKS:
        raise ValueError(
            f"batch {problem.batch} x heads {problem.heads} x q_len {problem.q_len} needs {blocks} blocks of kernel "
            f"{kernel.id}; a launch can have {MAX_BLOCKS}. Split the batch."
        )
    return blocks


def _q_tiles(kernel: KernelInfo, problem: Problem) -> int:
    # The blocks of a cluster share one head, so a head has whole clusters; tiles past the end have no rows.
    return _ceil_to(-(-problem.q_len // kernel.tile_m), kernel.cluster)


def _resident(kernel: KernelInfo, device: DeviceInfo) -> int:
    return max(device.sm_count // kernel.cluster, 1) * kernel.cluster


def busiest_share(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> float:
    """An estimate of the time of a call, to tell kernels apart that differ in their tiles: the query rows of the
    multiprocessor with the most, a row that sees every key counting 1, times the kernel's ``row_cost``.

    Tiles of equal length run in whole waves of a tile a multiprocessor, of which the last takes as long as a full one.
    Causal ones are dealt out evenly, but the longest is not divided.
    """
    heads = problem.heads * problem.batch
    q_tiles = _q_tiles(kernel, problem)
    resident = _resident(kernel, device)
    if not problem.is_causal:
        return -(-q_tiles * heads // resident) * kernel.tile_m * kernel.row_cost
    # The keys up to the last row of each tile, summed over a head's tiles; the last one sees all.
    full = q_tiles - 1
    keys = full * (full + 1) // 2 * kernel.tile_m + full * (problem.kv_len - problem.q_len) + problem.kv_len
    return max(1.0, keys / problem.kv_len * heads / resident) * kernel.tile_m * kernel.row_cost


def tiled(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> LaunchSpec:
    """A block a query tile, or with a persistent kernel a block a multiprocessor, in whole clusters."""
    q_tiles = _q_tiles(kernel, problem)
    blocks = q_tiles * problem.heads * problem.batch
    _checked_blocks(blocks, kernel, problem)
    if kernel.persistent:
        blocks = min(blocks, _resident(kernel, device))
    return LaunchSpec(
        grid=(blocks, 1, 1),
        boxes=(),
        q_tiles=q_tiles,
        splits=1,
        kv_per_split=_ceil_to(problem.kv_len, kernel.tile_n),
    )


def tiled_tma(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> LaunchSpec:
    """``tiled``, with tensor maps of Q, K and V."""
    spec = tiled(kernel, problem, device)
    query = TensorMapBox(kernel.box_cols, kernel.box_q_rows, kernel.swizzle)
    key_value = TensorMapBox(kernel.box_cols, kernel.box_kv_rows, kernel.swizzle)
    return LaunchSpec(spec.grid, (query, key_value, key_value), spec.q_tiles, spec.splits, spec.kv_per_split)


_DECODE_BLOCKS_A_SM = 2
# A split costs a partial result to write and to merge, so the fewest splits are taken that come this close to the
# fullest waves: on an H200 16 splits ran GQA 8:1 at D=512 at 3.87 TB/s where the fullest waves, 33 splits, ran at 3.19.
_NEARLY_FULL = 0.95
_MAX_SPLITS = 128
_FULL = 0.8  # of the device: then the keys are not split


def split_count(units: int, slots: int, tiles: int) -> int:
    """Into how many parts to split the keys of a decode call.

    Without splitting there are ``units`` blocks; the device runs ``slots`` at once; ``tiles`` is the number of steps of
    keys. The blocks run in waves of ``slots``. Of the splits that change a block's steps, the fewest are taken whose
    waves are nearly as full as those of the best.
    """
    if units >= _FULL * slots:
        return 1
    efficiency: dict[int, float] = {}
    last_steps = 0
    for splits in range(1, min(_MAX_SPLITS, slots, tiles) + 1):
        steps = -(-tiles // splits)
        if steps != last_steps:
            waves = units * splits / slots
            efficiency[splits] = waves / math.ceil(waves)
            last_steps = steps
    least = _NEARLY_FULL * max(efficiency.values())
    return next(splits for splits, value in efficiency.items() if value >= least)


def split_kv(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> LaunchSpec:
    """A block a tile of the rows that share a K/V head (query heads of the group x queries), and a part of the keys."""
    rows = problem.heads // problem.kv_heads * problem.q_len
    q_tiles = -(-rows // kernel.tile_m)
    units = problem.batch * problem.kv_heads * q_tiles
    resident = max(1, min(_DECODE_BLOCKS_A_SM, device.smem_block_optin // max(kernel.smem_bytes, 1)))
    tiles = -(-problem.kv_len // kernel.tile_n)
    steps = -(-tiles // split_count(units, resident * device.sm_count, tiles))
    splits = -(-tiles // steps)
    return LaunchSpec(
        grid=(_checked_blocks(splits * units, kernel, problem), 1, 1),
        boxes=(),
        q_tiles=q_tiles,
        splits=splits,
        kv_per_split=steps * kernel.tile_n,
    )


def merge(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> LaunchSpec:
    """A block a row; it follows a launch that split the keys, and takes splits from that one."""
    blocks = _checked_blocks(problem.batch * problem.heads * problem.q_len, kernel, problem)
    return LaunchSpec(grid=(blocks, 1, 1), boxes=(), q_tiles=1, splits=1, kv_per_split=problem.kv_len)


RECIPES: dict[str, Callable[[KernelInfo, Problem, DeviceInfo], LaunchSpec]] = {
    "split_d": tiled,
    "split_d_tma": tiled_tma,
    "persist_d": tiled,
    "persist_d_tma": tiled_tma,
    "wgmma": tiled_tma,
    "split_kv": split_kv,
    "merge": merge,
}


TENSOR_MAP_RECIPES = frozenset({"split_d_tma", "persist_d_tma", "wgmma"})


def defect(kernel: KernelInfo) -> str | None:
    """Why no call could launch ``kernel``, whatever its problem and device; None if nothing speaks against it."""
    if kernel.recipe not in RECIPES:
        return (
            f"recipe {kernel.recipe!r} is not one of {', '.join(sorted(RECIPES))}; "
            "install ffpa-core and the pack in one version"
        )
    if kernel.recipe in TENSOR_MAP_RECIPES:
        for field in ("box_cols", "box_q_rows", "box_kv_rows"):
            value = getattr(kernel, field)
            if not 1 <= value <= MAX_BOX:
                return f"{field} must be in 1..{MAX_BOX}, the manifest says {value}"
        if kernel.swizzle and kernel.box_cols * ELEMENT_BYTES > kernel.swizzle:
            return (
                f"box_cols must be in 1..{kernel.swizzle // ELEMENT_BYTES} beside a swizzle of {kernel.swizzle} bytes, "
                f"the manifest says {kernel.box_cols}"
            )
    return None


def launch_spec(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> LaunchSpec:
    """The launch of ``kernel`` for ``problem`` on ``device``.

    Raises ``ValueError`` for a kernel with a ``defect``, which no accepted pack has, and for a problem that no launch
    can hold.
    """
    wrong = defect(kernel)
    if wrong is not None:
        raise ValueError(f"kernel {kernel.id}: {wrong}")
    spec = RECIPES[kernel.recipe](kernel, problem, device)
    return replace(spec, mask_alignment=MASK_ALIGNMENT.get(kernel.recipe, 1))
