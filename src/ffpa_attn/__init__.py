"""Exact attention with head dims up to 1024 on precompiled CUDA kernels, and on PyTorch where none applies.

Names are loaded when they are used: importing this package imports neither torch nor CUDA.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import explain, ffpa_attn_func, installed_packs
    from .backends import Backend, CUDABackend, Hint, ReferenceBackend, SDPABackend
    from .errors import FallbackError, FFPAFallbackWarning, KernelNotFoundError, PackError
    from .explanation import Explanation
    from .gates import Gates
    from .options import Options
    from .runtime import Runtime, default_runtime

    __version__: str

__all__ = [
    "Backend",
    "CUDABackend",
    "Explanation",
    "FFPAFallbackWarning",
    "FallbackError",
    "Gates",
    "Hint",
    "KernelNotFoundError",
    "Options",
    "PackError",
    "ReferenceBackend",
    "Runtime",
    "SDPABackend",
    "__version__",
    "default_runtime",
    "explain",
    "ffpa_attn_func",
    "installed_packs",
]

_HOMES = {
    "Backend": "backends",
    "CUDABackend": "backends",
    "Explanation": "explanation",
    "FFPAFallbackWarning": "errors",
    "FallbackError": "errors",
    "Gates": "gates",
    "Hint": "backends",
    "KernelNotFoundError": "errors",
    "Options": "options",
    "PackError": "errors",
    "ReferenceBackend": "backends",
    "Runtime": "runtime",
    "SDPABackend": "backends",
    "default_runtime": "runtime",
    "explain": "api",
    "ffpa_attn_func": "api",
    "installed_packs": "api",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module(".version", __name__).core_version()
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
