"""The stand-in driver seen from Python, and the parameter structs of csrc/abi as ctypes."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, replace
from typing import Any

from ffpa_attn.launcher import Launcher


class Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in ("batch", "head", "row")]

    def astuple(self) -> tuple[int, int, int]:
        return self.batch, self.head, self.row


class AttentionParams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "mask")),
        *((name, Strides) for name in ("q_stride", "k_stride", "v_stride", "o_stride", "mask_stride")),
        ("mask_col_stride", ctypes.c_longlong),
        *(
            (name, ctypes.c_int)
            for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "group", "causal")
        ),
        ("causal_offset", ctypes.c_int),
        ("mask_kind", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("scale_log2", ctypes.c_float),
        ("q_tiles", ctypes.c_int),
        ("drop_p", ctypes.c_float),
        ("inv_keep", ctypes.c_float),
        ("philox_seed", ctypes.c_void_p),
        ("philox_offset", ctypes.c_void_p),
        ("seed_value", ctypes.c_ulonglong),
        ("offset_value", ctypes.c_ulonglong),
        ("splits", ctypes.c_int),
        ("kv_per_split", ctypes.c_int),
        ("partial_o", ctypes.c_void_p),
        ("partial_stats", ctypes.c_void_p),
    ]


ATTENTION_BYTES = ctypes.sizeof(AttentionParams)
MAP_BYTES = 128


class Record(ctypes.Structure):
    _fields_ = [
        ("config", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
        ("attribute_id", ctypes.c_int),
        ("cluster", ctypes.c_uint * 3),
        ("context", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("parameters", ctypes.c_ubyte * 1024),
    ]

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.config[:3])

    @property
    def params(self) -> AttentionParams:
        return AttentionParams.from_buffer_copy(bytes(self.parameters))

    @property
    def tma_params(self) -> AttentionParams:
        return AttentionParams.from_buffer_copy(bytes(self.parameters), 3 * MAP_BYTES)

    @property
    def map_addresses(self) -> list[int]:
        return [struct.unpack_from("<Q", bytes(self.parameters), i * MAP_BYTES)[0] for i in range(3)]


class MapRecord(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("type", "rank", "interleave", "swizzle", "promotion", "fill")),
        ("address", ctypes.c_uint64),
        ("dims", ctypes.c_uint64 * 4),
        ("strides", ctypes.c_uint64 * 3),
        ("box", ctypes.c_uint32 * 4),
        ("element_strides", ctypes.c_uint32 * 4),
    ]


class FakeDriver:
    """Controls and reads the stand-in library; one per process, so tests ``reset`` it."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.fake_launch.restype = ctypes.POINTER(Record)
        self.library.fake_map.restype = ctypes.POINTER(MapRecord)
        self.library.fake_reset.argtypes = [ctypes.c_size_t]
        self.library.fake_parameters.argtypes = [ctypes.c_size_t, ctypes.c_int]
        self.library.fake_enter_context.argtypes = [ctypes.c_size_t]

    def reset(self, parameter_bytes: int = ATTENTION_BYTES) -> None:
        self.library.fake_reset(parameter_bytes)

    def fail(self, call: str, result: int) -> None:
        self.library.fake_fail(call.encode(), result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, f"fake_{name}")

    def record(self, index: int = 0) -> Record:
        return self.library.fake_launch(index).contents

    def map_record(self, index: int) -> MapRecord:
        return self.library.fake_map(index).contents


def cubin(section: bytes = b"code") -> bytes:
    """The least ELF that passes for a cubin: a header, one section and its header."""
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, 64 + len(section), 0, 64, 0, 0, 64, 1, 0
    )
    return header + section + struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 64, len(section), 0, 0, 1, 0)


@dataclass(frozen=True)
class Kernel:
    """A manifest row with the attributes that launching reads."""

    id: str = "native.split_d-sm_90a-bf16-d64-s3"
    entry: str = "native_split_d_sm_90a_bf16_d64_s3"
    recipe: str = "split_d"
    sha256: str = "0" * 64
    threads: int = 128
    smem_bytes: int = 98304
    tile_m: int = 64
    tile_n: int = 64
    cluster: int = 1
    param_bytes: int = ATTENTION_BYTES
    box_cols: int = 0
    box_q_rows: int = 0
    box_kv_rows: int = 0
    swizzle: int = 0
    persistent: bool = False

    def with_(self, **changes: Any) -> Kernel:
        return replace(self, **changes)


TMA_KERNEL = Kernel(
    id="tma.split_d-sm_90a-bf16-d64-s3",
    recipe="split_d_tma",
    param_bytes=3 * MAP_BYTES + ((ATTENTION_BYTES + 63) // 64) * 64,
    box_cols=64,
    box_q_rows=128,
    box_kv_rows=80,
    swizzle=128,
)


@dataclass(frozen=True)
class Problem:
    """A problem with the attributes that launching reads."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str = "bf16"
    is_causal: bool = False
    scale: float = 0.125
    dropout_p: float = 0.0
    mask_kind: str = "none"
    device_index: int = 0

    @classmethod
    def of(cls, query: Any, key: Any, **options: Any) -> Problem:
        batch, heads, q_len, head_dim = query.shape
        return cls(batch, heads, key.shape[1], q_len, key.shape[2], head_dim, **options)


__all__ = ["ATTENTION_BYTES", "TMA_KERNEL", "AttentionParams", "FakeDriver", "Kernel", "Launcher", "Problem", "cubin"]
