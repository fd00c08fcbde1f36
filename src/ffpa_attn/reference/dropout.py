"""Which attention weights dropout keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from ..philox import uniform


def keep_mask(
    shape: tuple[int, int, int, int],
    dropout_p: float,
    seed: int | Tensor,
    offset: int | Tensor,
    *,
    rows: tuple[int, int] | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The kept elements of the score tensor [B, H, Nq, Nkv], or of its query rows `rows` = (first, end).

    Args:
        shape: (B, H, Nq, Nkv) of the whole score tensor; element numbers count through it row by row.
        dropout_p: probability to drop an element; one is kept when its uniform is greater.
        seed, offset: key and first element number of the Philox stream, see `ffpa_attn.philox`.

    Returns:
        bool [B, H, end - first, Nkv].
    """
    b, h, nq, nkv = shape
    first, end = rows if rows is not None else (0, nq)

    def axis(start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, dtype=torch.int64, device=device)

    head = axis(0, b)[:, None] * h + axis(0, h)
    row = head[:, :, None] * nq + axis(first, end)
    index = row[..., None] * nkv + axis(0, nkv) + offset
    return uniform(index, seed) > torch.tensor(dropout_p, dtype=torch.float32, device=device)
