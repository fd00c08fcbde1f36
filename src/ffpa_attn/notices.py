"""Warns once for each reason that a call does not run on a kernel."""

from __future__ import annotations

import threading
import warnings

from .errors import FFPAFallbackWarning


class Notices:
    """Remembers which reasons have been given."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def fallback(self, code: str, text: str) -> None:
        """Give FFPAFallbackWarning for `code` unless it has been given."""
        with self._lock:
            if code in self._seen:
                return
            self._seen.add(code)
        warnings.warn(
            f"attention runs on PyTorch's SDPA: {text} (given once for this reason; strict=True raises instead)",
            FFPAFallbackWarning,
            stacklevel=5,
        )

    def reset(self) -> None:
        """Forget everything, so that each reason is given again."""
        with self._lock:
            self._seen.clear()
