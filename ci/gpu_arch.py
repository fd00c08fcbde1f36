"""Print the arch of variants/archs.toml that suits the first GPU, or the default on a machine without one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "src"))

from ffpa_build.model import Arch  # noqa: E402
from ffpa_build.spec import load_spec  # noqa: E402

DEFAULT = "sm_90a"
CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR; the minor is the next one


def capability() -> str | None:
    """Compute capability of device 0 as "9.0", asked of the driver; None without a driver or a device."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return None
    digits = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MAJOR + 1):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
            return None
        digits.append(str(value.value))
    return ".".join(digits)


def arch_for(capability: str, archs: Mapping[str, Arch]) -> str:
    """The arch that serves a capability; of several, the one made for the fewest (8.9: sm_89, not sm_80)."""
    serving = [name for name, row in archs.items() if capability in row.capabilities]
    if not serving:
        raise SystemExit(f"no arch of variants/archs.toml serves a GPU of compute capability {capability}")
    return min(serving, key=lambda name: len(archs[name].capabilities))


if __name__ == "__main__":
    found = capability()
    print(DEFAULT if found is None else arch_for(found, load_spec(TREE).archs))
