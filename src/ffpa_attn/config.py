"""Settings from the environment, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

SMALL_D_VARIABLE = "FFPA_CUDA_ALLOW_SMALL_D"
STRICT_VARIABLE = "FFPA_STRICT"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Config:
    """Process-wide defaults.

    Attributes:
        allow_small_d: kernels serve head dims up to 256 (`FFPA_CUDA_ALLOW_SMALL_D`, default on).
        strict: raise instead of falling back to SDPA (`FFPA_STRICT`, default off).
    """

    allow_small_d: bool = True
    strict: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Read the variables; ValueError for a value that is no boolean."""
        return cls(
            allow_small_d=_boolean(environ, SMALL_D_VARIABLE, cls.allow_small_d),
            strict=_boolean(environ, STRICT_VARIABLE, cls.strict),
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
