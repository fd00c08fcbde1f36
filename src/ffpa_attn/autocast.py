"""torch.autocast, which custom operators have to apply themselves."""

from __future__ import annotations

import torch
from torch import Tensor

# The device types that torch.autocast knows. Asked once, because dynamo of torch 2.11 cannot trace the question.
AUTOCAST_DEVICES = frozenset(
    device
    for device in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", torch._C._get_privateuse1_backend_name())
    if torch.amp.is_autocast_available(device)
)


def autocast(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Under torch.autocast floating inputs, except float64, take its dtype, as for SDPA. A float32 mask, which every
    dtype of the query allows, keeps its precision."""
    if not isinstance(query, Tensor):
        return query, key, value, attn_mask
    device = query.device.type
    if device not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(device):
        return query, key, value, attn_mask
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Tensor, kept: tuple[torch.dtype, ...]) -> Tensor:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dtype in kept:
            return tensor
        return tensor.to(dtype)

    q, k, v = (cast(tensor, (torch.float64,)) for tensor in (query, key, value))
    return q, k, v, None if attn_mask is None else cast(attn_mask, (torch.float64, torch.float32))
