"""What a cubin says about itself, and whether that is what its variant promises.

`read_facts` runs once, beside the compiler; `violations` runs on every build, so that a changed limit in the tables
takes effect on cached cubins too.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ffpa_build.errors import FactsError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    from ffpa_build.matrix import Variant

META_SCHEMA = 1  # kMetaSchema of csrc/abi/kernel_meta.h
_META = struct.Struct("<16I")
_META_FIELDS = (
    "schema",
    "threads",
    "smem_bytes",
    "tile_m",
    "tile_n",
    "cluster",
    "param_bytes",
    "box_cols",
    "box_q_rows",
    "box_kv_rows",
    "swizzle",
    "persistent",
)
_MAX_PARAM_BYTES = 4096  # what every arch of the table accepts

# Attributes of .nv.info: format byte, attribute byte, then a 16-bit value or a 16-bit size and that many bytes.
_FORMAT_SIZED = 4
_ATTR_REGCOUNT = 0x2F
_ATTR_PARAM_INFO = 0x17  # 32-bit index, 16-bit ordinal and offset, then a word with the size above bit 18

# Where e_flags hold the sm number, by the OS ABI of the ELF header. The suffix a or f is not in every header, so that
# part of the arch's name comes from the ptxas report.
_SM_SHIFT = {51: 0, 65: 8}


@dataclass(frozen=True)
class Facts:
    """Facts of one cubin; sizes in bytes. The first block comes from the `_meta` symbol."""

    threads: int
    smem_bytes: int
    tile_m: int
    tile_n: int
    cluster: int
    param_bytes: int
    box_cols: int
    box_q_rows: int
    box_kv_rows: int
    swizzle: int
    persistent: bool

    entry: str
    arch: str  # of the ptxas report, its number checked against the ELF header
    registers: int
    stack_bytes: int
    spill_bytes: int  # the larger of spill stores and spill loads
    static_smem_bytes: int
    size: int
    sha256: str


@dataclass(frozen=True)
class ElfFacts:
    """What stands in a cubin itself: the fields of its `_meta` symbol, the sm number, and None for what is absent."""

    meta: dict[str, Any]
    sm: int
    registers: int | None


def read_elf(cubin: bytes, entry: str) -> ElfFacts:
    """Facts of a cubin whose only kernel must be `entry`, without the compiler's log. Raises FactsError."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(cubin))
        meta = _meta(elf, entry)
        sm = _sm(elf)
        param_bytes = _param_bytes(elf, entry)
        registers = _register_count(elf, entry)
    except (ELFError, struct.error, IndexError) as error:
        raise FactsError(f"{entry}: not a readable cubin: {error}") from error
    if param_bytes is not None and param_bytes != meta["param_bytes"]:
        raise FactsError(
            f"{entry}: takes {param_bytes} bytes of parameters, but {entry}_meta says {meta['param_bytes']}"
        )
    if meta["persistent"] not in (0, 1):
        raise FactsError(f"{entry}_meta has persistent {meta['persistent']}, but must have 0 or 1")
    meta["persistent"] = bool(meta["persistent"])
    del meta["schema"]
    return ElfFacts(meta, sm, registers)


def read_facts(cubin: bytes, entry: str, log: str) -> Facts:
    """Facts of a cubin whose only kernel must be `entry`, with the ptxas report in `log`. Raises FactsError."""
    elf = read_elf(cubin, entry)
    report: dict[str, Any] = _ptxas_report(log, entry)
    if elf.registers is not None and elf.registers != report["registers"]:
        raise FactsError(f"{entry}: ptxas reports {report['registers']} registers, the cubin {elf.registers}")
    arch = _reported_arch(log, entry)
    if re.fullmatch(rf"sm_{elf.sm}[af]?", arch) is None:
        raise FactsError(f"{entry}: ptxas compiled for {arch}, but the cubin is for sm_{elf.sm}")
    return Facts(
        **elf.meta,
        **report,
        entry=entry,
        arch=arch,
        size=len(cubin),
        sha256=hashlib.sha256(cubin).hexdigest(),
    )


def _meta(elf: ELFFile, entry: str) -> dict[str, Any]:
    symtab = _symbols(elf, entry)
    kernels = sorted(
        symbol.name
        for symbol in symtab.iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_info"]["bind"] == "STB_GLOBAL"
    )
    if kernels != [entry]:
        raise FactsError(f"the cubin's kernels are {kernels}, but must be exactly [{entry!r}]")
    symbols = symtab.get_symbol_by_name(f"{entry}_meta")
    if not symbols:
        raise FactsError(f"{entry}: the cubin lacks the symbol {entry}_meta")
    symbol = symbols[0]
    if symbol["st_size"] != _META.size:
        raise FactsError(f"{entry}_meta has {symbol['st_size']} bytes, but must have {_META.size}")
    section = elf.get_section(symbol["st_shndx"])
    if section["sh_type"] == "SHT_NOBITS":
        raise FactsError(f"{entry}_meta is not initialised")
    start = symbol["st_value"]
    meta = dict(zip(_META_FIELDS, _META.unpack(section.data()[start : start + _META.size]), strict=False))
    if meta["schema"] != META_SCHEMA:
        raise FactsError(f"{entry}_meta has schema {meta['schema']}, but this build reads {META_SCHEMA}")
    return meta


def _symbols(elf: ELFFile, entry: str) -> SymbolTableSection:
    from elftools.elf.sections import SymbolTableSection

    symtab = elf.get_section_by_name(".symtab")
    if not isinstance(symtab, SymbolTableSection):
        raise FactsError(f"{entry}: the cubin has no symbol table")
    return symtab


def _sm(elf: ELFFile) -> int:
    osabi = elf["e_ident"]["EI_OSABI"]
    if osabi not in _SM_SHIFT:
        raise FactsError(f"the ELF header has OS ABI {osabi}, which is no known cubin version")
    return int(elf["e_flags"]) >> _SM_SHIFT[osabi] & 0xFF


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    position = 0
    while position + 4 <= len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, position)
        position += 4
        payload = value.to_bytes(2, "little")
        if kind == _FORMAT_SIZED:
            payload = data[position : position + value]
            position += value
        found.append((attribute, payload))
    return found


def _param_bytes(elf: ELFFile, entry: str) -> int | None:
    """The size of the kernel's parameters, without what aligns the first of them."""
    section = elf.get_section_by_name(f".nv.info.{entry}")
    if section is None:
        return None
    words = [
        struct.unpack("<IHHI", payload)[3]
        for attribute, payload in _attributes(section.data())
        if attribute == _ATTR_PARAM_INFO and len(payload) == 12
    ]
    return sum(word >> 18 for word in words) if words else None


def _register_count(elf: ELFFile, entry: str) -> int | None:
    """Registers a thread, from the (symbol index, count) rows of .nv.info."""
    section = elf.get_section_by_name(".nv.info")
    symtab = _symbols(elf, entry)
    if section is None:
        return None
    for attribute, payload in _attributes(section.data()):
        if attribute == _ATTR_REGCOUNT and len(payload) == 8:
            index, count = struct.unpack("<II", payload)
            if symtab.get_symbol(index).name == entry:
                return int(count)
    return None


_COMPILING = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers([^\n]*)")
_STATIC_SMEM = re.compile(r"(\d+) bytes smem")


def _compiling(log: str, entry: str) -> re.Match[str]:
    compiling = _COMPILING.search(log)
    if compiling is None or compiling[1] != entry:
        raise FactsError(f"{entry}: the compiler's log has no ptxas report for it")
    return compiling


def _reported_arch(log: str, entry: str) -> str:
    return _compiling(log, entry)[2]


def _ptxas_report(log: str, entry: str) -> dict[str, int]:
    part = log[_compiling(log, entry).end() :]
    # Device functions that were not inlined have stack frames and spills of their own.
    spills = _SPILLS.findall(part)
    used = _USED.search(part)
    if not spills or used is None:
        raise FactsError(f"{entry}: the ptxas report names no registers or spills")
    static_smem = _STATIC_SMEM.search(used[2])
    return {
        "registers": int(used[1]),
        "stack_bytes": sum(int(stack) for stack, _, _ in spills),
        "spill_bytes": max(sum(int(stores) for _, stores, _ in spills), sum(int(loads) for _, _, loads in spills)),
        "static_smem_bytes": int(static_smem[1]) if static_smem else 0,
    }


def violations(variant: Variant, facts: Facts, toolchain: str) -> list[str]:
    """What is wrong with a variant compiled by this toolchain; an empty list means that it can be packed."""
    found = []
    if facts.entry != variant.entry:
        found.append(f"its kernel is {facts.entry}, but must be {variant.entry}")
    if facts.arch != variant.target.name:
        found.append(f"the cubin is for {facts.arch}, but must be for {variant.target.name}")
    smem, limit = facts.smem_bytes + facts.static_smem_bytes, variant.arch.smem_block
    if smem > limit:
        found.append(f"needs {smem} bytes of shared memory a block; {variant.arch.name} has {limit}")
    if not 0 < facts.threads <= 1024 or facts.threads % 32:
        found.append(f"has {facts.threads} threads a block; must be a multiple of 32 up to 1024")
    if not facts.tile_m or not facts.tile_n or not facts.cluster:
        found.append(f"tile_m, tile_n and cluster must be positive: {facts.tile_m}, {facts.tile_n}, {facts.cluster}")
    if not 0 < facts.param_bytes <= _MAX_PARAM_BYTES:
        found.append(f"takes {facts.param_bytes} bytes of parameters; must be 1..{_MAX_PARAM_BYTES}")
    if facts.swizzle not in (0, 32, 64, 128):
        found.append(f"has swizzle {facts.swizzle}; must be 0, 32, 64 or 128")
    allowed = max(
        (
            rule.bytes
            for rule in variant.impl.spills
            if (not rule.toolchains or toolchain in rule.toolchains)
            and rule.matches(
                variant.arch.name, variant.dtype, variant.acc, variant.head_dim, variant.stages, variant.features
            )
        ),
        default=0,
    )
    if facts.spill_bytes > allowed:
        found.append(
            f"spills {facts.spill_bytes} bytes of registers; allowed: {allowed} "
            f"(variants/families.toml, [{variant.impl.id}] spills)"
        )
    return found
