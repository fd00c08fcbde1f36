"""The closure of a translation unit's includes below csrc/."""

from __future__ import annotations

import re
from pathlib import Path

from ffpa_build.errors import IncludeError

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_QUOTED = re.compile(r'"([^"]+)"\s*(//.*|/\*.*)?')
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class Sources:
    """Reads headers below a folder, each once; a build asks for the same few again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str] = {}
        self._includes: dict[str, tuple[str, ...]] = {}
        self._closures: dict[tuple[str, ...], dict[str, str]] = {}

    def text(self, name: str) -> str:
        """The text of a header by its path from the root. Raises IncludeError."""
        if name not in self._texts:
            try:
                self._texts[name] = (self.root / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise IncludeError(f"{name}: cannot be read: {error}") from error
        return self._texts[name]

    def _direct(self, name: str) -> tuple[str, ...]:
        if name not in self._includes:
            self._includes[name] = scan(self.text(name), name)
        return self._includes[name]

    def closure(self, source: str, includer: str) -> dict[str, str]:
        """Every header that `source` reaches, name -> text, sorted by name.

        `includer` names the source in errors. Raises IncludeError on a missing header, an include that is not quoted,
        or one that leaves the root.
        """
        direct = scan(source, includer)
        if direct not in self._closures:
            self._closures[direct] = self._walk(direct, includer)
        return self._closures[direct]

    def _walk(self, direct: tuple[str, ...], includer: str) -> dict[str, str]:
        found: dict[str, str] = {}
        pending = [(includer, name) for name in direct]
        while pending:
            parent, name = pending.pop()
            if name in found:
                continue
            if not (self.root / name).is_file():
                raise IncludeError(f'{parent}: #include "{name}": no such file below {self.root.name}/')
            found[name] = self.text(name)
            pending += [(name, child) for child in self._direct(name)]
        return dict(sorted(found.items()))


def scan(text: str, name: str) -> tuple[str, ...]:
    """The headers that a text includes itself.

    An include inside `#if` counts, so that the cache key errs on the safe side.
    """
    includes = []
    for match in _INCLUDE.finditer(_BLOCK_COMMENT.sub(" ", text)):
        quoted = _QUOTED.fullmatch(match[1])
        if quoted is None:
            raise IncludeError(
                f'{name}: #include {match[1]}: device code includes nothing but csrc/, as #include "path/from/csrc"'
            )
        path = quoted[1]
        if path.startswith("/") or "\\" in path or ":" in path or any(p in ("", ".", "..") for p in path.split("/")):
            raise IncludeError(f'{name}: #include "{path}": must be a plain path from csrc/, without . or ..')
        includes.append(path)
    return tuple(dict.fromkeys(includes))
