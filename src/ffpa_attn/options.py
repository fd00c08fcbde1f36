"""What a call asks for beside its tensors."""

from __future__ import annotations

from typing import NamedTuple

from .backends import Backend


class Options(NamedTuple):
    """The options of a call, as its caller gave them: `Call.of` checks them, `ffpa_attn_func` says what each means.

    A tuple, because every call makes and hashes one, and where 0.1 us counts a plain tuple of the fields stands for it.
    """

    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    backend: Backend | str | None = None
    return_lse: bool = False
    strict: bool | None = None
