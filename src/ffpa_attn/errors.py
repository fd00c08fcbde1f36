"""Exceptions and warnings that callers can catch."""

from __future__ import annotations


class KernelNotFoundError(RuntimeError):
    """No installed pack holds a kernel for a call that asked for one; the text names the variant, packs and remedy."""


class FallbackError(RuntimeError):
    """Strict mode: the call would have gone to PyTorch's SDPA.

    Attributes:
        code: the stable name of the reason, see `ffpa_attn.routing.Reason`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class PackError(RuntimeError):
    """A kernel pack, or a file in one, failed a check."""


class FFPAFallbackWarning(UserWarning):
    """A call goes to PyTorch's SDPA; given once for each reason."""


class DriverNotFoundError(RuntimeError):
    """The CUDA driver library cannot be loaded, or lacks a function that the launcher needs."""


class LaunchError(RuntimeError):
    """The CUDA driver refused to load or to launch a kernel; the text names the kernel and the driver's error."""
