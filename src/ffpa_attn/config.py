"""Settings from the environment, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

SMALL_D_VARIABLE = "FFPA_CUDA_ALLOW_SMALL_D"
STRICT_VARIABLE = "FFPA_STRICT"
FORCE_VARIABLES = {
    "fp16": "FFPA_FP16_FORCE_KERNEL",
    "fp8": "FFPA_FP8_FORCE_KERNEL",
    "fp4": "FFPA_FP4_FORCE_KERNEL",
}
VARIABLES = (SMALL_D_VARIABLE, STRICT_VARIABLE, *FORCE_VARIABLES.values())
"""Every variable that the runtime reads."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Config:
    """Process-wide defaults.

    Attributes:
        allow_small_d: kernels serve head dims up to 256 (`FFPA_CUDA_ALLOW_SMALL_D`, default on).
        strict: raise instead of falling back to SDPA (`FFPA_STRICT`, default off).
        forced: (family, kernel id) pairs for packs built with debug dispatch (`FFPA_FP16_FORCE_KERNEL`, ...), see
            `ffpa_attn.debug`.
    """

    allow_small_d: bool = True
    strict: bool = False
    forced: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Read the variables; ValueError for a value that is no boolean."""
        return cls(
            allow_small_d=_boolean(environ, SMALL_D_VARIABLE, cls.allow_small_d),
            strict=_boolean(environ, STRICT_VARIABLE, cls.strict),
            forced=tuple((family, environ[name]) for family, name in FORCE_VARIABLES.items() if environ.get(name)),
        )


@cache
def default_config() -> Config:
    """The configuration of this process, from the environment at the first use."""
    return Config.from_environ(os.environ)


def _boolean(environ: Mapping[str, str], name: str, default: bool) -> bool:
    text = environ.get(name, "").strip().lower()
    if not text:
        return default
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"environment variable {name}={text!r}: allowed are {', '.join(_TRUE + _FALSE)}")
