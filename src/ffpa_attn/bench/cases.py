"""Benchmark cases: what one measured attention call is, and how much work it does.

Pure data, no torch: a case can be built, counted and printed on any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

TASKS = ("self", "cross", "decode", "gqa", "causal", "attn-mask", "dropout", "non-aligned")
DTYPES = ("bf16", "fp16")
MASKS = ("none", "bool", "additive")

ELEMENT_BYTES = 2  # bf16 and fp16
GQA_GROUP = 8  # query heads a K/V head in the GQA cases when --Hkv is not given
NON_ALIGNED_CUT = 37  # odd, so that no tile size divides the sequence
DROPOUT_P = 0.1


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention problem: Q [B, H, Nq, D], K and V [B, Hkv, Nkv, D]."""

    task: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str
    causal: bool = False
    mask: str = "none"
    dropout_p: float = 0.0

    @property
    def label(self) -> str:
        """The task, with the facts that tell apart two cases of one task."""
        parts = [self.task]
        if self.task == "decode" and self.kv_heads != self.heads:
            parts.append(f"{self.heads // self.kv_heads}:1")
        if self.mask != "none":
            parts.append(self.mask)
        if self.causal and self.task != "causal":
            parts.append("causal")
        return " ".join(parts)

    @property
    def shape(self) -> str:
        """Sizes for people: ``B1 H32 N8192``, with K/V heads and lengths where they differ."""
        heads = f"H{self.heads}" if self.heads == self.kv_heads else f"H{self.heads}/{self.kv_heads}"
        length = f"N{self.q_len}" if self.q_len == self.kv_len else f"N{self.q_len}x{self.kv_len}"
        return f"B{self.batch} {heads} {length}"

    @property
    def attended_pairs(self) -> float:
        """(query, key) pairs a head. A square causal case counts as half, the convention of published figures; a
        causal case with Nq < Nkv counts the pairs that the tail-aligned triangle leaves."""
        full = float(self.q_len) * self.kv_len
        if not self.causal:
            return full
        if self.q_len == self.kv_len:
            return full / 2
        return full - self.q_len * (self.q_len - 1) / 2

    @property
    def flops(self) -> float:
        """Floating-point operations of the two matrix products, 4 * B * H * pairs * D. Masks remove none."""
        return 4.0 * self.batch * self.heads * self.attended_pairs * self.head_dim

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V, each read once: what a decode step has to move."""
        return 2 * ELEMENT_BYTES * self.batch * self.kv_heads * self.kv_len * self.head_dim


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a sweep. ``decode_*`` are used by the decode task, the others by every other task."""

    batch: int
    heads: int
    seq_len: int
    decode_batch: int
    decode_len: int
    kv_heads: int | None = None


GPU_SIZES = Sizes(batch=1, heads=32, seq_len=8192, decode_batch=4, decode_len=32768)
QUICK_SIZES = Sizes(batch=1, heads=8, seq_len=2048, decode_batch=1, decode_len=8192)
CPU_SIZES = Sizes(batch=1, heads=2, seq_len=256, decode_batch=1, decode_len=512)


def build_cases(
    tasks: Sequence[str], head_dims: Sequence[int], dtypes: Sequence[str], sizes: Sizes, causal: bool
) -> Iterator[Case]:
    """Yield the cases of a sweep, task by task within each dtype and head dim.

    ``causal=True`` makes every case causal that can be: all but attn-mask, because a mask and the causal flag exclude
    each other.
    """
    for dtype in dtypes:
        for head_dim in head_dims:
            for task in tasks:
                yield from _task_cases(task, head_dim, dtype, sizes, causal)


def _task_cases(task: str, head_dim: int, dtype: str, sizes: Sizes, causal: bool) -> Iterator[Case]:
    kv_heads = sizes.kv_heads if sizes.kv_heads is not None else sizes.heads
    n = sizes.seq_len
    base = Case(task, sizes.batch, sizes.heads, kv_heads, n, n, head_dim, dtype, causal=causal)
    if task == "self":
        yield base
    elif task == "cross":
        yield dataclasses.replace(base, q_len=max(1, n // 2))
    elif task == "decode":
        decode = dataclasses.replace(base, batch=sizes.decode_batch, q_len=1, kv_len=sizes.decode_len)
        yield decode
        if sizes.kv_heads is None and _grouped(sizes.heads) != sizes.heads:
            yield dataclasses.replace(decode, kv_heads=_grouped(sizes.heads))
    elif task == "gqa":
        yield dataclasses.replace(base, kv_heads=kv_heads if sizes.kv_heads is not None else _grouped(sizes.heads))
    elif task == "causal":
        yield dataclasses.replace(base, causal=True)
    elif task == "attn-mask":
        for mask in ("bool", "additive"):
            yield dataclasses.replace(base, causal=False, mask=mask)
    elif task == "dropout":
        yield dataclasses.replace(base, dropout_p=DROPOUT_P)
    elif task == "non-aligned":
        odd = max(1, n - NON_ALIGNED_CUT)
        yield dataclasses.replace(base, q_len=odd, kv_len=odd)
    else:
        raise ValueError(f"task: {task!r} is unknown; allowed: {', '.join(TASKS)}")


def _grouped(heads: int) -> int:
    """K/V heads of the GQA cases: one for every GQA_GROUP query heads, one at least."""
    return heads // GQA_GROUP if heads % GQA_GROUP == 0 else 1
