"""The instructions of a cubin, and whether they are the ones that its kernel is made for.

A tensor-core atom compiled for the wrong arch turns silently into a trap, so that a compiler's success says little.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from ffpa_attn.manifest import KernelInfo
from ffpa_build.errors import FactsError

DISTRIBUTION = "nvidia-cuda-nvdisasm"

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "native": ("HMMA", "LDGSTS"),
    "tma": ("HMMA", "UTMALDG"),
    "hopper": ("HGMMA", "UTMALDG"),
}
"""By ext: what a kernel that computes attention must have; one that only merges results has no products."""
FORBIDDEN = re.compile(r"MEMBAR(\.\w+)*\.(GPU|SYS)|CCTL(\.\w+)*\.IV(ALL)?")
"""In a kernel fed by the copy engine: a fence over the whole GPU, and what discards the L1 cache after it (other CCTL
are prefetches). Its barriers lie in shared memory, so one of these stalls the pipeline for nothing; the barrier of a
cluster has them of itself."""

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.\w+)*)", re.MULTILINE)


def find_nvdisasm() -> Path | None:
    """nvdisasm of the installed distribution, else the one on PATH."""
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in ("nvdisasm", "nvdisasm.exe"):
            return Path(str(file.locate()))
    found = shutil.which("nvdisasm")
    return None if found is None else Path(found)


def opcodes(cubin: bytes, nvdisasm: Path) -> Counter[str]:
    """How often each instruction stands in a cubin, such as `MEMBAR.ALL.GPU`. Raises FactsError."""
    with tempfile.TemporaryDirectory(prefix="ffpa-sass-") as scratch:
        file = Path(scratch, "kernel.cubin")
        file.write_bytes(cubin)
        result = subprocess.run([str(nvdisasm), "-c", str(file)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise FactsError(f"nvdisasm cannot read the cubin: {result.stderr.strip()}")
    return count(result.stdout)


def count(listing: str) -> Counter[str]:
    """The instructions of a listing of nvdisasm."""
    return Counter(_INSTRUCTION.findall(listing))


def wrong_instructions(kernel: KernelInfo, found: Mapping[str, int]) -> list[str]:
    """What is wrong with a kernel's instructions; an empty list when all is well."""
    if "merge" in kernel.problems:
        return []
    plain = {opcode.partition(".")[0] for opcode in found}
    wrong = [f"has no {opcode}" for opcode in REQUIRED.get(kernel.ext, ()) if opcode not in plain]
    if kernel.ext in ("tma", "hopper") and kernel.cluster == 1:
        wrong += [f"has {number} {name}" for name, number in sorted(found.items()) if FORBIDDEN.fullmatch(name)]
    return wrong
