"""How each recipe launches a kernel: grid and tensor-map boxes from the manifest row, the problem and the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffpa_attn.device import DeviceInfo
    from ffpa_attn.manifest import KernelInfo
    from ffpa_attn.problem import Problem

MAX_BLOCKS = 2**31 - 1
MAX_BOX_ROWS = 256


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
    of the kernel's cluster; ``splits`` parts of the keys, of ``kv_per_split`` keys each (a multiple of ``tile_n``).
    """

    grid: tuple[int, int, int]
    boxes: tuple[TensorMapBox, ...]
    q_tiles: int
    splits: int
    kv_per_split: int


def _ceil_to(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def tiled(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> LaunchSpec:
    """A block a query tile, or with a persistent kernel as many blocks as the device runs at once."""
    # The blocks of a cluster share one head, so a head has whole clusters; tiles past the end have no rows.
    q_tiles = _ceil_to(-(-problem.q_len // kernel.tile_m), kernel.cluster)
    blocks = q_tiles * problem.heads * problem.batch
    if blocks > MAX_BLOCKS:
        raise ValueError(
            f"batch {problem.batch} x heads {problem.heads} x q_len {problem.q_len} needs {blocks} blocks of kernel "
            f"{kernel.id}; a launch can have {MAX_BLOCKS}. Split the batch."
        )
    if kernel.persistent:
        resident = max(device.sm_count * kernel.persistent // kernel.cluster, 1) * kernel.cluster
        blocks = min(blocks, resident)
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
    for field in ("box_cols", "box_q_rows", "box_kv_rows"):
        value = getattr(kernel, field)
        limit = MAX_BOX_ROWS
        if not 1 <= value <= limit:
            raise ValueError(f"kernel {kernel.id}: {field} must be in 1..{limit}, the manifest says {value}")
    query = TensorMapBox(kernel.box_cols, kernel.box_q_rows, kernel.swizzle)
    key_value = TensorMapBox(kernel.box_cols, kernel.box_kv_rows, kernel.swizzle)
    return LaunchSpec(spec.grid, (query, key_value, key_value), spec.q_tiles, spec.splits, spec.kv_per_split)


RECIPES: dict[str, Callable[[KernelInfo, Problem, DeviceInfo], LaunchSpec]] = {
    "split_d": tiled,
    "split_d_tma": tiled_tma,
    "persist_d": tiled,
    "persist_d_tma": tiled_tma,
}


def launch_spec(kernel: KernelInfo, problem: Problem, device: DeviceInfo) -> LaunchSpec:
    """The launch of ``kernel`` for ``problem`` on ``device``.

    Raises ``ValueError`` for a recipe that this runtime does not know and for a problem that no launch can hold.
    """
    recipe = RECIPES.get(kernel.recipe)
    if recipe is None:
        raise ValueError(
            f"kernel {kernel.id}: recipe {kernel.recipe!r} is not one of {', '.join(sorted(RECIPES))}; "
            "install ffpa-core and the pack in one version"
        )
    return recipe(kernel, problem, device)
