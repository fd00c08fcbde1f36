"""Limits outside which the specification sends a call to SDPA, as data."""

from __future__ import annotations

from dataclasses import dataclass

from .config import Config


@dataclass(frozen=True)
class Gates:
    """Where kernels are used.

    Attributes:
        max_head_dim, head_dim_multiple: head dims that kernels can serve.
        decode_q_len: query lengths below this are decode, and are never too short.
        min_q_len, min_kv_len: shorter sequences are left to SDPA, which is as fast there. Queries are gated from
            `decode_q_len` up to `min_q_len`.
        small_head_dim, allow_small_d: head dims up to `small_head_dim` go to SDPA when not allowed.
    """

    max_head_dim: int = 1024
    head_dim_multiple: int = 8
    decode_q_len: int = 8
    min_q_len: int = 512
    min_kv_len: int = 512
    small_head_dim: int = 256
    allow_small_d: bool = True

    @classmethod
    def from_config(cls, config: Config) -> Gates:
        """The specification's gates with the environment's settings."""
        return cls(allow_small_d=config.allow_small_d)

    @classmethod
    def open(cls) -> Gates:
        """Every length that a kernel can run, for tests and measurements."""
        return cls(min_q_len=0, min_kv_len=0)
