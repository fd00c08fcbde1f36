"""The content-addressed cache of cubins.

An entry is two files named by its key: `<key>.cubin`, and `<key>.json` with the facts, the cubin's sha256 and a digest
of itself. The second is written last; an entry counts only if both files are there and whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ffpa_build.facts import Facts

SCHEMA = 1  # part of every key: increase when the meaning of an entry changes


def cache_key(
    identity: str, arch: str, flags: tuple[str, ...], name: str, source: str, headers: Mapping[str, str]
) -> str:
    """sha256 over everything that a cubin and its facts depend on."""
    digest = hashlib.sha256()
    parts = [str(SCHEMA), identity, arch, *flags, "", name, source]
    for header, text in sorted(headers.items()):
        parts += [header, text]
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that any reader, at any moment, sees all of it or nothing. An OSError names it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


@dataclass(frozen=True)
class Entry:
    """A compiled variant. `seconds` by the clock, `cpu_seconds` and `peak_rss_mib` are of the compiler's process.

    Entries of earlier builds have 0 for `cpu_seconds`.
    """

    key: str
    facts: Facts
    log: str
    seconds: float
    peak_rss_mib: int
    cubin: bytes
    cpu_seconds: float = 0.0


class Cache:
    """Cubins below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def record_path(self, key: str) -> Path:
        return self.folder / "cubins" / key[:2] / f"{key}.json"

    def cubin_path(self, key: str) -> Path:
        return self.folder / "cubins" / key[:2] / f"{key}.cubin"

    def store(self, entry: Entry) -> None:
        write_atomically(self.cubin_path(entry.key), entry.cubin)
        body = asdict(entry)
        del body["cubin"]
        text = json.dumps({"digest": _digest(body), "entry": body}, sort_keys=True, indent=1)
        write_atomically(self.record_path(entry.key), text.encode())

    def load(self, key: str) -> Entry | None:
        """The entry of a key, or None if it is absent, half written or damaged."""
        try:
            record = json.loads(self.record_path(key).read_bytes())
            body: dict[str, Any] = record["entry"]
            if record["digest"] != _digest(body) or body["key"] != key:
                return None
            facts = Facts(**body.pop("facts"))
            cubin = self.cubin_path(key).read_bytes()
            entry = Entry(**body, facts=facts, cubin=cubin)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return entry if hashlib.sha256(cubin).hexdigest() == facts.sha256 else None


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def default_cache_dir() -> Path:
    """The user's cache folder for this build system."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("ffpa_build", appauthor=False))
