"""Facts about a CUDA device that routing and launching need. Importing this touches neither torch nor CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class DeviceInfo:
    """One CUDA device.

    ``capability`` is (major, minor); ``smem_block_optin`` is the largest dynamic shared memory a block can have, in
    bytes; ``sm_count`` is the number of multiprocessors.
    """

    index: int
    name: str
    capability: tuple[int, int]
    smem_block_optin: int
    sm_count: int

    @classmethod
    def from_properties(cls, index: int, properties: Any) -> DeviceInfo:
        """From what ``torch.cuda.get_device_properties`` returns, or anything with the same attributes."""
        return cls(
            index=index,
            name=properties.name,
            capability=(properties.major, properties.minor),
            smem_block_optin=properties.shared_memory_per_block_optin,
            sm_count=properties.multi_processor_count,
        )


@cache
def device_info(index: int) -> DeviceInfo:
    """The device with torch's index ``index``. The first call for a device initialises CUDA."""
    import torch

    return DeviceInfo.from_properties(index, torch.cuda.get_device_properties(index))
