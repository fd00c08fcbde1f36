"""The manifest of a kernel pack, `manifest.json`: written by the build, read by the runtime.

Needs the standard library only. A manifest on disk is untrusted: `Manifest.from_json` checks every field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

SCHEMA = 1  # of the file's layout
PACK_ABI = 1  # kPackAbi of csrc/abi/attention_params.h
DEBUG_FAMILIES = ("fp16", "fp8", "fp4")  # kernels of unquantised, FP8 and FP4 calls

_ID = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+(-[a-z0-9_]+)+")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_SYMBOL = re.compile(r"[a-z_][a-z0-9_]*")
_ARCH = re.compile(r"sm_[0-9]+[af]?")
_CAPABILITY = re.compile(r"[0-9]+\.[0-9]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DISTRIBUTION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSION = re.compile(r"[0-9][0-9a-z.!]*(\+[a-z0-9]+(\.[a-z0-9]+)*)?")


class ManifestError(ValueError):
    """A manifest is malformed. The text names the field, the value and what is allowed."""


@dataclass(frozen=True)
class Compiler:
    """What compiled the cubins, such as `nvrtc` `12.9.86`."""

    name: str
    version: str


@dataclass(frozen=True)
class KernelInfo:
    """One kernel. Sizes are in bytes; see csrc/abi/kernel_meta.h for the launch facts.

    `arch` is what the kernel is designed for and `capabilities` are the devices that load the cubin (of an emulated
    kernel: those of the arch it is compiled for). `rank` is the place of `ext` in the arch's order of preference; -1
    means that a call must ask for the ext. `order` is the place among impls of one ext, the lowest first, and
    `row_cost` what a row of a tile costs beside those of kernels with other tiles, per cent, 0 where there are none;
    the file has the two only where they are not 0. `file` is relative to the pack's package. `spill_bytes` is the
    larger of spill stores and spill loads. `stages`, `tile_m`, `tile_n` and `cluster` are counts.
    """

    id: str
    family: str
    impl: str
    ext: str
    recipe: str
    problems: tuple[str, ...]
    arch: str
    capabilities: tuple[str, ...]
    rank: int
    dtype: str
    acc: str
    head_dim: int
    stages: int
    features: tuple[str, ...]
    file: str
    sha256: str
    size: int
    entry: str
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
    registers: int
    spill_bytes: int
    order: int = 0
    row_cost: int = 0


@dataclass(frozen=True)
class Manifest:
    """A pack's manifest. `kernels` are sorted by id. `debug` are the families whose kernel may be forced at run time
    (see `ffpa_attn.debug`); the file has the key only where there are any."""

    schema: int
    pack: str
    distribution: str
    version: str
    pack_abi: int
    source_digest: str
    compiler: Compiler
    flags: tuple[str, ...]
    kernels: tuple[KernelInfo, ...]
    debug: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The file's text; the same manifest gives the same text."""
        data = asdict(self)
        if not self.debug:
            del data["debug"]
        for row in data["kernels"]:
            for key, usual in _USUAL.items():
                if row[key] == usual:
                    del row[key]
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Parses and checks a manifest. Raises ManifestError.

        The layout's number and the pack ABI are looked at first, so that a pack of another generation is named as such
        instead of by the fields that it lacks.
        """
        try:
            data = json.loads(text, object_pairs_hook=_unique_object, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"manifest: not valid JSON: {error}") from error
        if not isinstance(data, dict):
            raise ManifestError(f"manifest: must be an object, not {type(data).__name__}")
        for key, known in (("schema", SCHEMA), ("pack_abi", PACK_ABI)):
            if type(data.get(key)) is not int or data[key] != known:
                raise ManifestError(f"manifest: {key} = {data.get(key)!r}: this runtime reads {known}")
        data.setdefault("debug", [])
        _exact_keys("manifest", data, cls)
        compiler = data["compiler"]
        if not isinstance(compiler, dict):
            raise ManifestError(f"manifest: compiler = {compiler!r}: must be an object")
        _exact_keys("compiler", compiler, Compiler)
        if not isinstance(data["kernels"], list) or not data["kernels"]:
            raise ManifestError("manifest: kernels: must be a list with at least one kernel")
        manifest = cls(
            schema=SCHEMA,
            pack=_matching(_WORD)("manifest", "pack", data["pack"]),
            distribution=_matching(_DISTRIBUTION)("manifest", "distribution", data["distribution"]),
            version=_matching(_VERSION)("manifest", "version", data["version"]),
            pack_abi=PACK_ABI,
            source_digest=_matching(_SHA256)("manifest", "source_digest", data["source_digest"]),
            compiler=Compiler(
                name=_text("compiler", "name", compiler["name"]),
                version=_text("compiler", "version", compiler["version"]),
            ),
            flags=_list_of(_text)("manifest", "flags", data["flags"]),
            kernels=tuple(_kernel(index, row) for index, row in enumerate(data["kernels"])),
            debug=_list_of(_one_of(*DEBUG_FAMILIES))("manifest", "debug", data["debug"]),
        )
        _unique("id", [kernel.id for kernel in manifest.kernels])
        _unique("entry", [kernel.entry for kernel in manifest.kernels])
        return manifest


Check = Callable[[str, str, Any], Any]


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ManifestError(f"{where}: {key} = {value!r}: must be a non-empty printable string")
    return value


def _matching(pattern: re.Pattern[str]) -> Check:
    def check(where: str, key: str, value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ManifestError(f"{where}: {key} = {value!r}: must match {pattern.pattern}")
        return value

    return check


def _one_of(*allowed: object) -> Check:
    def check(where: str, key: str, value: Any) -> Any:
        # 0.0 and False equal 0
        if not any(type(value) is type(choice) and value == choice for choice in allowed):
            raise ManifestError(f"{where}: {key} = {value!r}: allowed: {', '.join(map(str, allowed))}")
        return value

    return check


def _integer(minimum: int, maximum: int = 2**31 - 1) -> Check:
    def check(where: str, key: str, value: Any) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ManifestError(f"{where}: {key} = {value!r}: must be an integer in {minimum}..{maximum}")
        return value

    return check


def _boolean(where: str, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ManifestError(f"{where}: {key} = {value!r}: must be true or false")
    return value


def _list_of(item: Check, minimum: int = 0) -> Check:
    def check(where: str, key: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < minimum:
            raise ManifestError(f"{where}: {key} = {value!r}: must be a list of at least {minimum}")
        items = tuple(item(where, key, element) for element in value)
        if len(set(items)) != len(items):
            raise ManifestError(f"{where}: {key} = {value!r}: must not name anything twice")
        return items

    return check


_KERNEL_CHECKS: Mapping[str, Check] = {
    "id": _matching(_ID),
    "family": _matching(_WORD),
    "impl": _matching(_WORD),
    "ext": _matching(_WORD),
    "recipe": _matching(_WORD),
    "problems": _list_of(_one_of("prefill", "decode", "merge"), minimum=1),
    "arch": _matching(_ARCH),
    "capabilities": _list_of(_matching(_CAPABILITY), minimum=1),
    "rank": _integer(-1),
    "dtype": _one_of("bf16", "fp16"),
    "acc": _one_of("f32", "f16"),
    "head_dim": _integer(8, 1024),
    "stages": _integer(1),
    "features": _list_of(_matching(_WORD)),
    "file": _text,
    "sha256": _matching(_SHA256),
    "size": _integer(1),
    "entry": _matching(_SYMBOL),
    "threads": _integer(32, 1024),
    "smem_bytes": _integer(0),
    "tile_m": _integer(1),
    "tile_n": _integer(1),
    "cluster": _integer(1, 16),
    "param_bytes": _integer(1),
    "box_cols": _integer(0),
    "box_q_rows": _integer(0),
    "box_kv_rows": _integer(0),
    "swizzle": _one_of(0, 32, 64, 128),
    "persistent": _boolean,
    "registers": _integer(1, 255),
    "spill_bytes": _integer(0),
    "order": _integer(0),
    "row_cost": _integer(0),
}
# What a row has where the file says nothing.
_USUAL = {"order": 0, "row_cost": 0}


def _kernel(index: int, row: Any) -> KernelInfo:
    where = f"kernels[{index}]"
    if not isinstance(row, dict):
        raise ManifestError(f"{where}: must be an object, not {type(row).__name__}")
    row = {**_USUAL, **row}
    _exact_keys(where, row, KernelInfo)
    kernel = KernelInfo(**{key: check(where, key, row[key]) for key, check in _KERNEL_CHECKS.items()})
    # The id has no separator in it, so this also makes the name a plain relative one.
    if kernel.file != f"cubins/{kernel.id}.cubin":
        raise ManifestError(f"{where}: file = {kernel.file!r}: must be 'cubins/{kernel.id}.cubin'")
    if kernel.entry != kernel.id.replace(".", "_").replace("-", "_"):
        raise ManifestError(f"{where}: entry = {kernel.entry!r}: must be the id with . and - as _")
    return kernel


def _exact_keys(where: str, data: Mapping[str, Any], cls: type) -> None:
    known = {field.name for field in fields(cls)}
    if unknown := sorted(set(data) - known):
        raise ManifestError(f"{where}: unknown keys {unknown}; allowed: {', '.join(sorted(known))}")
    if missing := sorted(known - set(data)):
        raise ManifestError(f"{where}: missing keys {missing}")


def _unique(key: str, values: list[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ManifestError(f"manifest: kernels: {key} {value!r} stands twice")
        seen.add(value)


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("an object names a key twice")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
