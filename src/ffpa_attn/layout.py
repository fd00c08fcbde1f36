"""Memory order of results."""

from __future__ import annotations

from collections.abc import Sequence


def result_strides(shape: Sequence[int], like: Sequence[int]) -> tuple[int, int, int, int]:
    """Packed strides, in elements, for a result [B, H, N, D] of a query that has the strides `like`.

    A query that is a view of [B, N, H, D] storage (packed, or a chunk of a fused projection) gives a result stored as
    [B, N, H, D] too; every other one a contiguous [B, H, N, D] result.
    """
    _, heads, rows, columns = shape
    if heads > 1 and rows > 1 and like[1] < like[2]:
        return rows * heads * columns, columns, heads * columns, 1
    return heads * rows * columns, rows * columns, columns, 1
