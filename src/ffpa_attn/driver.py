"""The CUDA driver library: finding it and reading the addresses of its entry points. Nothing here initialises CUDA."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping

from ffpa_attn.errors import DriverNotFoundError

# What the launcher's entry points need: the context-independent loader and tensor maps came with CUDA 12.0.
MIN_VERSION = (12, 0)
MIN_DRIVER = "525"


def library_names(platform: str = sys.platform) -> tuple[str, ...]:
    """File names of the driver library on ``platform`` (as in ``sys.platform``), in the order in which to try them."""
    return ("nvcuda.dll",) if platform == "win32" else ("libcuda.so.1", "libcuda.so")


def open_library(names: Iterable[str] | None = None) -> ctypes.CDLL:
    """Opens the driver library by the system's own search.

    Raises ``DriverNotFoundError``, with what each name gave, on a machine without an NVIDIA driver.
    """
    failures = []
    for name in library_names() if names is None else names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            failures.append(f"{name}: {error}")
    raise DriverNotFoundError(
        "no NVIDIA driver on this machine, so no CUDA kernel can run; install driver "
        f"{MIN_DRIVER} or newer, or use backend='sdpa' or 'reference'. Tried " + "; ".join(failures)
    )


def version(library: ctypes.CDLL) -> tuple[int, int]:
    """The newest CUDA version that the driver serves, as (major, minor). Works before CUDA is initialised."""
    value = ctypes.c_int()
    result = library.cuDriverGetVersion(ctypes.byref(value))
    if result != 0:
        raise DriverNotFoundError(f"the NVIDIA driver does not tell its version: cuDriverGetVersion gave {result}")
    return value.value // 1000, value.value % 1000 // 10


def entry_points(library: ctypes.CDLL, names: Mapping[str, bool]) -> dict[str, int]:
    """Addresses of the exported functions ``names`` (name -> whether it is required) of the driver library.

    An optional function that the driver lacks is left out. Raises ``DriverNotFoundError`` that names the driver's
    version and the one needed when a required function is missing.
    """
    addresses = {}
    for name, required in names.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            if required:
                major, minor = version(library)
                raise DriverNotFoundError(
                    f"the NVIDIA driver serves CUDA {major}.{minor} and lacks {name}; ffpa needs CUDA "
                    f"{MIN_VERSION[0]}.{MIN_VERSION[1]}, driver {MIN_DRIVER} or newer"
                ) from None
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None  # a symbol that dlsym found has an address
        addresses[name] = address
    return addresses
