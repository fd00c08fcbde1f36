"""Whether a wheel holds what it says: its RECORD, its manifest, and every cubin against both and against the tables.

Nothing of the wheel is unpacked or run.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any

from ffpa_attn.manifest import KernelInfo, Manifest, ManifestError
from ffpa_build.errors import BuildError, FactsError, SelectionError
from ffpa_build.facts import read_elf
from ffpa_build.find import find_variant
from ffpa_build.model import Spec
from ffpa_build.sass import opcodes, wrong_instructions

LAUNCHER = "ffpa_attn/_launcher.so"
LIBRARIES = frozenset(
    "libtvm_ffi.so libstdc++.so.6 libgcc_s.so.1 libc.so.6 libm.so.6 libpthread.so.0 "
    "ld-linux-x86-64.so.2 ld-linux-aarch64.so.1".split()
)
"""What the launcher may be linked to: tvm-ffi and the C and C++ run time. The CUDA driver is handed to it."""
EXPORTS = "__tvm_ffi_"
IMPORTS = "TVMFFI"
"""Prefixes of the launcher's own symbols and, of those without a version, of the ones it takes from tvm-ffi."""
_UNVERSIONED = ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
_WEAK = frozenset("_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __gmon_start__ __cxa_finalize".split())


class UnreadableWheel(BuildError):
    """A file is no wheel. The text says why."""


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory: `members` maps names to bytes, without folders; `name` and `version` are of METADATA."""

    path: Path
    members: dict[str, bytes]
    info: str
    name: str
    version: str

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Raises UnreadableWheel."""
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                if len(set(names)) != len(names):
                    raise UnreadableWheel(f"{path.name}: a member stands twice")
                members = {name: archive.read(name) for name in names}
        except (OSError, zipfile.BadZipFile) as error:
            raise UnreadableWheel(f"{path.name}: {error}") from error
        folders = {name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info")}
        if len(folders) != 1 or f"{min(folders)}/METADATA" not in members:
            raise UnreadableWheel(f"{path.name}: must have one .dist-info folder with METADATA, has {sorted(folders)}")
        info = folders.pop()
        header = BytesHeaderParser().parsebytes(members[f"{info}/METADATA"])
        return cls(path, members, info, str(header["Name"]), str(header["Version"]))

    @property
    def manifests(self) -> list[str]:
        return sorted(name for name in self.members if name.count("/") == 1 and name.endswith("/manifest.json"))


def inspect(wheel: Wheel, spec: Spec, nvdisasm: Path | None = None) -> list[str]:
    """What is wrong with a wheel, a line each. Instructions are looked at where `nvdisasm` is given."""
    found = record_differences(wheel)
    packs = {pack.distribution: pack for pack in spec.packs.values()}
    if LAUNCHER in wheel.members:
        found += launcher_differences(wheel.members[LAUNCHER])
    if not wheel.manifests:
        # The runtime is of use without kernels, and the meta distribution has none.
        cubins = [name for name in wheel.members if name.endswith(".cubin")]
        if cubins or (wheel.name in packs and LAUNCHER not in wheel.members):
            found.append(f"manifest.json is missing; {len(cubins)} cubins")
        return found
    for name in wheel.manifests:
        try:
            manifest = Manifest.from_json(wheel.members[name])
        except ManifestError as error:
            found.append(f"{name}: {error}")
            continue
        pack = packs.get(wheel.name)
        expected = (wheel.name, wheel.version, pack.name if pack else None, pack.package if pack else None)
        stated = (manifest.distribution, manifest.version, manifest.pack, name.split("/")[0])
        for what, left, right in zip(("distribution", "version", "pack", "package"), stated, expected, strict=True):
            if left != right:
                found.append(f"{name}: is of {what} {left!r}, but the wheel of {right!r}")
        found += _cubin_differences(wheel, name.split("/")[0], manifest, spec, nvdisasm)
    return found


def record_differences(wheel: Wheel) -> list[str]:
    """Members that RECORD lacks, names besides, and wrong hashes or sizes."""
    record = f"{wheel.info}/RECORD"
    if record not in wheel.members:
        return ["RECORD is missing"]
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(wheel.members[record].decode("utf-8", "replace"))) if row}
    found = [f"{name}: not in RECORD" for name in sorted(wheel.members.keys() - rows.keys())]
    found += [f"{name}: RECORD has it, the wheel does not" for name in sorted(rows.keys() - wheel.members.keys())]
    for name in sorted(wheel.members.keys() & rows.keys() - {record}):
        data = wheel.members[name]
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if rows[name] != [f"sha256={digest}", str(len(data))]:
            found.append(f"{name}: differs from RECORD")
    return found


def launcher_differences(library: bytes) -> list[str]:
    """Libraries and symbols of the launcher that are not expected."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerSymSection
    from elftools.elf.sections import SymbolTableSection

    try:
        elf = ELFFile(io.BytesIO(library))
        dynamic = elf.get_section_by_name(".dynamic")
        symbols = elf.get_section_by_name(".dynsym")
        versions = elf.get_section_by_name(".gnu.version")
        if not isinstance(dynamic, DynamicSection) or not isinstance(symbols, SymbolTableSection):
            return [f"{LAUNCHER}: not a shared library"]
        tags: list[Any] = list(dynamic.iter_tags())
        needed = {str(tag.needed) for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        search = [tag.entry.d_tag for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]
        found = [f"{LAUNCHER}: is linked to {name}" for name in sorted(needed - LIBRARIES)]
        found += [f"{LAUNCHER}: has {tag}, a folder of the machine that built it" for tag in search]
        for index, symbol in enumerate(symbols.iter_symbols()):
            if not symbol.name:
                continue
            if symbol["st_shndx"] != "SHN_UNDEF":
                if not symbol.name.startswith(EXPORTS):
                    found.append(f"{LAUNCHER}: exports {symbol.name}")
                continue
            # Symbols of the C and C++ run time have versions, whose age auditwheel judges.
            plain = not isinstance(versions, GNUVerSymSection) or versions.get_symbol(index)["ndx"] in _UNVERSIONED
            if plain and symbol.name not in _WEAK and not symbol.name.startswith(IMPORTS):
                found.append(f"{LAUNCHER}: takes {symbol.name} from an unknown library")
    except (ELFError, IndexError) as error:
        return [f"{LAUNCHER}: not a readable library: {error}"]
    return found


def _cubin_differences(wheel: Wheel, package: str, manifest: Manifest, spec: Spec, nvdisasm: Path | None) -> list[str]:
    listed = {f"{package}/{kernel.file}" for kernel in manifest.kernels}
    stray = sorted(name for name in wheel.members if name.endswith(".cubin") and name not in listed)
    found = [f"{name}: not in the manifest" for name in stray]
    for kernel in manifest.kernels:
        data = wheel.members.get(f"{package}/{kernel.file}")
        lines = ["missing"] if data is None else _kernel_differences(kernel, data, manifest.pack, spec, nvdisasm)
        found += [f"{package}/{kernel.file}: {line}" for line in lines]
    return found


def _kernel_differences(kernel: KernelInfo, cubin: bytes, pack: str, spec: Spec, nvdisasm: Path | None) -> list[str]:
    found = []
    if len(cubin) != kernel.size:
        found.append(f"has {len(cubin)} bytes, the manifest says {kernel.size}")
    if hashlib.sha256(cubin).hexdigest() != kernel.sha256:
        found.append("its sha256 is not the manifest's")
    try:
        variant = find_variant(spec, kernel.id)
    except SelectionError as error:
        return [*found, str(error)]
    row = {
        "pack": (pack, variant.pack),
        "ext": (kernel.ext, variant.impl.ext),
        "recipe": (kernel.recipe, variant.impl.recipe),
        "problems": (kernel.problems, variant.impl.problems),
        "arch": (kernel.arch, variant.arch.name),
        "capabilities": (kernel.capabilities, variant.target.capabilities),
        "rank": (kernel.rank, variant.rank),
        "order": (kernel.order, variant.impl.order),
        "row_cost": (kernel.row_cost, variant.impl.row_cost),
        "dtype": (kernel.dtype, variant.dtype),
        "acc": (kernel.acc, variant.acc),
        "head_dim": (kernel.head_dim, variant.head_dim),
        "stages": (kernel.stages, variant.stages),
        "features": (kernel.features, variant.features),
    }
    found += [f"{key} is {stated}, by the tables {known}" for key, (stated, known) in row.items() if stated != known]
    try:
        facts = read_elf(cubin, kernel.entry)
        if facts.sm != variant.target.sm:
            found.append(f"the cubin is for sm_{facts.sm}, but must be for {variant.target.name}")
        stated_facts = {key: getattr(kernel, key) for key in facts.meta}
        if facts.registers is not None:
            facts.meta["registers"], stated_facts["registers"] = facts.registers, kernel.registers
        found += [
            f"{key} is {value} in the cubin, {stated_facts[key]} in the manifest"
            for key, value in facts.meta.items()
            if value != stated_facts[key]
        ]
        if nvdisasm is not None:
            found += wrong_instructions(kernel, opcodes(cubin, nvdisasm))
    except FactsError as error:
        found.append(str(error))
    return found
