"""Typed access to TOML tables, with errors that name file, table, key, value and what is allowed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ffpa_build.errors import SpecError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MISSING = object()


class Table:
    """One table being read. Every accessor takes its key off the table; `finish` rejects the keys that are left."""

    def __init__(self, file: str, name: str, data: Mapping[str, Any]) -> None:
        self.file = file
        self.name = name
        self._left = dict(data)
        self._known: list[str] = []

    def error(self, key: str, value: object, allowed: str) -> SpecError:
        return SpecError(f"{self.file}: [{self.name}] {key} = {value!r}: {allowed}")

    def _take(self, key: str, default: object) -> Any:
        self._known.append(key)
        value = self._left.pop(key, default)
        if value is _MISSING:
            raise SpecError(f"{self.file}: [{self.name}] {key}: this key is required")
        return value

    def string(self, key: str, default: str | object = _MISSING, allowed: Collection[str] | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, value, "must be a non-empty string")
        if allowed is not None and value not in allowed:
            raise self.error(key, value, f"allowed: {', '.join(allowed)}")
        return value

    def integer(self, key: str, default: int | object = _MISSING, minimum: int = 0) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, value, f"must be an integer >= {minimum}")
        return value

    def boolean(self, key: str, default: bool | object = _MISSING) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "must be true or false")
        return value

    def strings(
        self,
        key: str,
        default: tuple[str, ...] | object = _MISSING,
        allowed: Collection[str] | None = None,
        empty: bool = True,
    ) -> tuple[str, ...]:
        value = self._take(key, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
            raise self.error(key, value, "must be a list of non-empty strings")
        return self._checked_list(key, value, allowed, empty)

    def integers(
        self,
        key: str,
        default: tuple[int, ...] | object = _MISSING,
        empty: bool = True,
    ) -> tuple[int, ...]:
        value = self._take(key, default)
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in value
        ):
            raise self.error(key, value, "must be a list of positive integers")
        return self._checked_list(key, value, None, empty)

    def _checked_list(self, key: str, value: Any, allowed: Collection[Any] | None, empty: bool) -> tuple[Any, ...]:
        if not value and not empty:
            raise self.error(key, value, "must not be empty")
        if len(set(value)) != len(value):
            raise self.error(key, value, "must not name anything twice")
        if allowed is not None:
            for item in value:
                if item not in allowed:
                    raise self.error(key, item, f"allowed: {', '.join(map(str, allowed)) or 'nothing'}")
        return tuple(value)

    def raw(self, key: str, default: object = _MISSING) -> Any:
        return self._take(key, default)

    def has(self, key: str) -> bool:
        return key in self._left

    def tables(self, key: str) -> list[Table]:
        """A list of inline tables; absent means none."""
        value = self._take(key, ())
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, value, "must be a list of tables")
        return [Table(self.file, f"{self.name}.{key}[{index}]", item) for index, item in enumerate(value)]

    def finish(self) -> None:
        for key, value in self._left.items():
            raise self.error(key, value, f"unknown key; allowed: {', '.join(sorted(self._known))}")


def read_toml(path: Path, shown_as: str) -> dict[str, Any]:
    """The top-level table of a file. Raises SpecError if it is absent or not TOML."""
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise SpecError(f"{shown_as}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{shown_as}: not valid TOML: {error}") from error


def child_tables(file: str, parent: str, data: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """The entries of a table all of whose values must be tables, as (key, Table)."""
    found = []
    for key, value in data.items():
        name = f"{parent}.{key}" if parent else key
        if not isinstance(value, dict):
            raise SpecError(f"{file}: {key} = {value!r}: unknown key; only tables stand here")
        found.append((key, Table(file, name, value)))
    return found
