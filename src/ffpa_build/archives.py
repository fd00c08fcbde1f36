"""Where two archives differ: the first member that does, and the first byte in it."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path


def first_difference(first: Path, second: Path) -> str | None:
    """Compares two files byte for byte; None when they are equal, else a sentence about the first difference.

    Wheels (`.whl`) and sdists (`.tar.gz`) are looked into, in the order of their members: the text names the member and
    the byte offset in it, or the member's attribute that differs. Of any other file, and of archives whose members all
    agree, it gives the offset in the file itself.
    """
    left, right = first.read_bytes(), second.read_bytes()
    if left == right:
        return None
    if first.suffix == ".whl":
        found = _members_differ(_zip_members(first), _zip_members(second))
    elif first.name.endswith(".tar.gz"):
        found = _members_differ(_tar_members(first), _tar_members(second))
    else:
        return f"byte {offset(left, right)}"
    return found or f"all members agree, but byte {offset(left, right)} of the archive differs"


def offset(left: bytes, right: bytes) -> int:
    """The position of the first byte that differs; the length of the shorter where it begins the longer."""
    shorter = min(len(left), len(right))
    low, high = 0, shorter
    while low < high:
        middle = (low + high) // 2
        if left[low : middle + 1] == right[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


Member = tuple[str, dict[str, object], bytes]


def _zip_members(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            attributes: dict[str, object] = {
                "mode": oct(info.external_attr >> 16),
                "time": info.date_time,
                "compression": info.compress_type,
                "system": info.create_system,
            }
            yield info.filename, attributes, archive.read(info)


def _tar_members(path: Path) -> Iterator[Member]:
    with tarfile.open(path) as archive:
        for info in archive:
            stream = archive.extractfile(info)
            attributes: dict[str, object] = {
                "type": info.type,
                "mode": oct(info.mode),
                "time": info.mtime,
                "owner": (info.uid, info.gid, info.uname, info.gname),
                "link": info.linkname,
            }
            yield info.name, attributes, b"" if stream is None else stream.read()


def _members_differ(first: Iterator[Member], second: Iterator[Member]) -> str | None:
    for position, (name, attributes, data) in enumerate(first):
        other = next(second, None)
        if other is None:
            return f"{name}: only in the first"
        if other[0] != name:
            return f"member {position} is {name} in the first and {other[0]} in the second"
        if data != other[2]:
            return f"{name}: byte {offset(data, other[2])} (sizes {len(data)} and {len(other[2])})"
        for key, value in attributes.items():
            if value != other[1][key]:
                return f"{name}: {key} {value} and {other[1][key]}"
    extra = next(second, None)
    return None if extra is None else f"{extra[0]}: only in the second"
