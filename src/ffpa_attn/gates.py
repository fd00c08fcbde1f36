"""Limits outside which the specification sends a call to SDPA, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .config import Config

if TYPE_CHECKING:
    from .problem import Problem

Kind = Literal["decode", "prefill"]
ANY = 2**31 - 1


@dataclass(frozen=True)
class Opening:
    """Short problems, without a mask tensor and dropout, that kernels run on one kind of device, because they were
    measured ahead of SDPA there. Ranges include both ends.

    Attributes:
        capability: of the device that was measured.
        kind: the kernels that run them.
        head_dims, q_lens, kv_lens: from and to.
        heads: from and to, of batch times query heads: more of them fill the device without splitting the keys.
    """

    capability: tuple[int, int]
    kind: Kind
    head_dims: tuple[int, int]
    q_lens: tuple[int, int]
    kv_lens: tuple[int, int]
    heads: tuple[int, int] = (1, ANY)

    def holds(self, problem: Problem, capability: tuple[int, int]) -> bool:
        """Whether `problem` is one of these."""
        inside = (
            low <= size <= high
            for size, (low, high) in (
                (problem.head_dim, self.head_dims),
                (problem.q_len, self.q_lens),
                (problem.kv_len, self.kv_lens),
                (problem.batch * problem.heads, self.heads),
            )
        )
        plain = problem.mask_kind == "none" and problem.dropout_p == 0.0
        return capability == self.capability and plain and all(inside)


# Measured by `python -m ffpa_attn.bench gates` on an H200; the figures are in docs/performance.md.
OPENINGS = (
    Opening((9, 0), "decode", head_dims=(257, 1024), q_lens=(1, 16), kv_lens=(256, ANY)),
    Opening((9, 0), "prefill", head_dims=(257, 1024), q_lens=(17, ANY), kv_lens=(256, ANY)),
    Opening((9, 0), "decode", head_dims=(8, 256), q_lens=(8, 16), kv_lens=(512, ANY), heads=(1, 32)),
    Opening((9, 0), "decode", head_dims=(8, 256), q_lens=(17, 64), kv_lens=(8192, ANY), heads=(1, 32)),
)


@dataclass(frozen=True)
class Gates:
    """Where kernels are used.

    Attributes:
        max_head_dim, head_dim_multiple: head dims that kernels can serve.
        decode_q_len: query lengths below this are decode, and are never too short.
        min_q_len, min_kv_len: shorter sequences are left to SDPA, which is as fast there. Queries are gated from
            `decode_q_len` up to `min_q_len`.
        small_head_dim, allow_small_d: head dims up to `small_head_dim` go to SDPA when not allowed.
        openings: shorter problems that kernels run all the same.
    """

    max_head_dim: int = 1024
    head_dim_multiple: int = 8
    decode_q_len: int = 8
    min_q_len: int = 512
    min_kv_len: int = 512
    small_head_dim: int = 256
    allow_small_d: bool = True
    openings: tuple[Opening, ...] = OPENINGS

    def kind(self, problem: Problem, capability: tuple[int, int]) -> Kind | None:
        """The kernels that suit the lengths of `problem`; None where it is left to SDPA."""
        for opening in self.openings:
            if opening.holds(problem, capability):
                return opening.kind
        decode = problem.q_len < self.decode_q_len
        if problem.kv_len < self.min_kv_len or not (decode or problem.q_len >= self.min_q_len):
            return None
        return "decode" if decode else "prefill"

    @classmethod
    def from_config(cls, config: Config) -> Gates:
        """The specification's gates with the environment's settings."""
        return cls(allow_small_d=config.allow_small_d)

    @classmethod
    def open(cls) -> Gates:
        """Every length that a kernel can run, for tests and measurements."""
        return cls(min_q_len=0, min_kv_len=0, openings=())
