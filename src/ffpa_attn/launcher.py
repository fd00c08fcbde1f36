"""The native launcher: loads cubins, and makes plans that launch them with little work a call."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm_ffi

from ffpa_attn import driver
from ffpa_attn.errors import LaunchError
from ffpa_attn.library import file_name

if TYPE_CHECKING:
    from torch import Tensor

    from ffpa_attn.manifest import KernelInfo
    from ffpa_attn.recipes import LaunchSpec

LIBRARY = Path(__file__).with_name(file_name())

# DLDeviceType.
CPU = 1
CUDA = 2

MASK_KINDS = {"none": 0, "boolean": 1, "additive": 2, "additive_f32": 3}


class MisalignedError(ValueError):
    """Q, K or V cannot be read in 16-byte pieces as it lies; a contiguous copy can."""


tvm_ffi.register_error("ffpa_attn.LaunchError", LaunchError)
tvm_ffi.register_error("ffpa_attn.MisalignedError", MisalignedError)


class Launcher:
    """The launcher library joined to a CUDA driver.

    ``library`` is the file that ``ffpa_build.launcher`` builds, ``cuda`` the open driver library (default: the
    machine's own). ``device_type`` is the kind of device that tensors must be on; a value other than ``CUDA`` goes with
    a stand-in for the driver. Raises ``DriverNotFoundError`` without a usable driver and ``LaunchError`` without a
    usable launcher library.
    """

    def __init__(self, library: Path = LIBRARY, cuda: ctypes.CDLL | None = None, device_type: int = CUDA) -> None:
        try:
            self._module = tvm_ffi.load_module(library)
        except (OSError, RuntimeError) as error:
            raise LaunchError(f"the launcher {library} cannot be loaded; reinstall ffpa-core. {error}") from error
        self._cuda = driver.open_library() if cuda is None else cuda  # keeps the addresses valid
        points = driver.entry_points(self._cuda, dict(self._module.entry_point_names()))
        self._driver = self._module.open_driver(list(points), list(points.values()), device_type)
        self._kernels: dict[str, Any] = {}

    def kernel(self, info: KernelInfo, image: bytes | Callable[[], bytes]) -> Any:
        """The loaded kernel of a manifest row; ``image`` is its cubin, or a function that reads it if needed.

        A cubin is loaded once in the life of the launcher, by whichever thread comes first. Raises ``LaunchError`` that
        names the kernel when the cubin is damaged, foreign to the device's driver, or not what the manifest says.
        """
        key = f"{info.id}@{info.sha256}"
        kernel = self._kernels.get(key)
        if kernel is None:
            facts = {
                "id": info.id,
                "entry": info.entry,
                "param_bytes": info.param_bytes,
                "threads": info.threads,
                "smem_bytes": info.smem_bytes,
                "cluster": info.cluster,
            }
            content = image() if callable(image) else image
            # The native side holds the lock and looks the key up again.
            kernel = self._kernels[key] = self._module.load_kernel(self._driver, key, facts, content)
        return kernel

    def plan(
        self,
        launches: Sequence[tuple[Any, LaunchSpec]],
        problem: Mapping[str, Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
    ) -> Callable[..., bool]:
        """A prepared call of ``launches``, pairs of a loaded kernel and its launch, which run in order on one stream.

        ``problem`` has causal, scale, mask_kind, dropout_p; the tensors are examples of what calls will bring, with
        the same shapes, strides, dtypes and device. The result is called with (query, key, value, attn_mask or None,
        out, lse or None), with dropout also (seed, offset, offset_value), with splits > 1 also (partial_o,
        partial_stats). It returns False, and does nothing, for tensors that do not fit the plan. It may be called from
        many threads. It raises ``MisalignedError`` before launching anything.
        """
        main = launches[0][1]
        facts = dict(problem, q_tiles=main.q_tiles, splits=main.splits, kv_per_split=main.kv_per_split)
        rows = [
            {
                "kernel": kernel,
                "grid": list(spec.grid),
                "boxes": [[box.cols, box.rows, box.swizzle] for box in spec.boxes],
                "mask_alignment": spec.mask_alignment,
            }
            for kernel, spec in launches
        ]
        plan: Callable[..., bool] = self._module.make_attention_plan(
            self._driver, rows, facts, query, key, value, attn_mask
        )
        return plan

    def abi(self) -> dict[str, int]:
        """Sizes of the parameter structs in bytes (``attention``, ``attention_tma``) and the ``pack_abi``."""
        return dict(self._module.abi_facts())


_default_lock = threading.Lock()
_default: list[Launcher] = []


def default_launcher() -> Launcher:
    """The launcher of this process, opened on the first call."""
    if not _default:
        with _default_lock:
            if not _default:
                _default.append(Launcher())
    return _default[0]
