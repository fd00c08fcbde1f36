"""Errors that a user of the build can act on; the command line prints their text without a traceback."""

from __future__ import annotations


class BuildError(Exception):
    """Base of every error that this package raises on purpose."""


class SpecError(BuildError, ValueError):
    """A table below `variants/` is wrong. The text names file, table, key, value and what is allowed."""


class SelectionError(BuildError, ValueError):
    """A selection is empty, contradictory or names something that does not exist."""


class IncludeError(BuildError):
    """A source includes something that the build cannot see."""


class ToolchainError(BuildError):
    """A compiler is missing, cannot be installed or is not the pinned version."""


class CompileError(BuildError):
    """A compiler rejected a translation unit. `log` is the compiler's own text."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class FactsError(BuildError):
    """A cubin is not what its variant says, or lacks a fact."""
