"""Two builds compared: what counts as a difference, and how it is named."""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import re
import shutil
import stat
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffpa_build.archives import first_difference, offset
from small_tree import ONE_KERNEL, ROOT


@pytest.fixture(scope="module")
def reproduce() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "ci" / "reproduce.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproduce"] = module  # where dataclasses look annotations up
    spec.loader.exec_module(module)
    return module


def wheel(path: Path, members: dict[str, bytes], mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, data)
    return path


def sdist(path: Path, members: dict[str, bytes], mtime: int = 0, header_time: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=header_time) as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(data), mtime
                archive.addfile(info, io.BytesIO(data))
    return path


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_the_offset_is_where_a_plain_search_finds_it(left: bytes, right: bytes) -> None:
    shorter = min(len(left), len(right))
    assert offset(left, right) == next((i for i in range(shorter) if left[i] != right[i]), shorter)


@pytest.mark.parametrize("make, name", [(wheel, "a.whl"), (sdist, "a.tar.gz")])
def test_the_first_differing_member_and_byte_are_named(make, name: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = make(tmp_path / "1" / name, {"same": b"x", "cubins/k.cubin": b"0123456789", "later": b"a"})
    second = make(tmp_path / "2" / name, {"same": b"x", "cubins/k.cubin": b"01234X6789", "later": b"b"})
    assert first_difference(first, first) is None
    assert first_difference(first, second) == "cubins/k.cubin: byte 5 (sizes 10 and 10)"


def test_members_that_only_one_archive_has_and_their_order_are_named(tmp_path: Path) -> None:
    both = wheel(tmp_path / "1.whl", {"a": b"", "b": b""})
    assert first_difference(both, wheel(tmp_path / "2.whl", {"a": b""})) == "b: only in the first"
    assert first_difference(wheel(tmp_path / "3.whl", {"a": b""}), both) == "b: only in the second"
    swapped = wheel(tmp_path / "4.whl", {"b": b"", "a": b""})
    assert first_difference(both, swapped) == "member 0 is a in the first and b in the second"


def test_attributes_of_members_are_named(tmp_path: Path) -> None:
    first = wheel(tmp_path / "1.whl", {"a": b"x"})
    assert first_difference(first, wheel(tmp_path / "2.whl", {"a": b"x"}, 0o600)) == "a: mode 0o644 and 0o600"
    early, late = sdist(tmp_path / "1.tar.gz", {"a": b"x"}, 1), sdist(tmp_path / "2.tar.gz", {"a": b"x"}, 2)
    assert first_difference(early, late) == "a: time 1 and 2"


def test_a_difference_outside_the_members_is_found(tmp_path: Path) -> None:
    first = sdist(tmp_path / "1.tar.gz", {"a": b"x"})
    second = sdist(tmp_path / "2.tar.gz", {"a": b"x"}, header_time=1)
    # The time of a gzip file stands in bytes 4 to 7 of its header.
    assert first_difference(first, second) == "all members agree, but byte 4 of the archive differs"


def test_every_cubin_wheel_and_sdist_is_compared(reproduce: ModuleType, tmp_path: Path) -> None:
    for out, kernel in (("1", b"old kernel"), ("2", b"odd kernel")):
        wheel(tmp_path / out / "dist/p.whl", {"k.cubin": kernel})
        sdist(tmp_path / out / "dist/p.tar.gz", {"PKG-INFO": b"same"})
        cubin = tmp_path / out / "cache/cubins/ab/abcd.cubin"
        cubin.parent.mkdir(parents=True)
        cubin.write_bytes(kernel)
    sdist(tmp_path / "2/dist/q.tar.gz", {})
    assert reproduce.differences(tmp_path / "1", tmp_path / "2") == [
        "cache/cubins/ab/abcd.cubin: byte 1",
        "dist/p.whl: k.cubin: byte 1 (sizes 10 and 10)",
        "dist/q.tar.gz: only the second build has it",
    ]


def test_the_two_places_differ_in_all_that_must_not_matter(reproduce: ModuleType, tmp_path: Path) -> None:
    first, second = reproduce.PLACES
    for attribute in ("folder", "umask", "mtime"):
        assert getattr(first, attribute) != getattr(second, attribute)
    for name in ("TZ", "LC_ALL", "PYTHONHASHSEED", "FFPA_BUILD_JOBS"):
        assert first.environment[name] != second.environment[name]
    reproduce.copy_tree(ROOT, tmp_path / "copy", second)
    status = (tmp_path / "copy/VERSION").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert int(status.st_mtime) == second.mtime
    assert not list((tmp_path / "copy").rglob("*.so"))


@pytest.mark.parametrize("option", ["--out=x", "--cache-dir", "--check-reproducible"])
def test_options_that_would_undo_the_comparison_are_refused(
    reproduce: ModuleType, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        reproduce.main([option])
    assert "for ci/reproduce.py to decide" in capsys.readouterr().err


@pytest.fixture
def tree(small_tree: Path, reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small tree, of which `reproduce` builds one kernel with the requirements installed here."""
    copy = tmp_path / "tree"
    shutil.copytree(small_tree, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "ci", copy / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    for name in [name for name in os.environ if name.startswith(("FFPA_", "ENABLE_FFPA_"))]:
        monkeypatch.delenv(name)
    for name, value in ONE_KERNEL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(reproduce, "TREE", copy)
    return copy


def test_two_builds_of_a_pack_are_equal(
    reproduce: ModuleType, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--keep", str(tmp_path / "keep"), "--no-isolation", "--dist", "ffpa-extra"]
    assert reproduce.main(arguments) == 0
    assert "1 cubins and 2 distributions, built twice: every byte is the same" in capsys.readouterr().out


def test_a_build_that_depends_on_its_folder_is_caught(
    reproduce: ModuleType, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = tree / "src/ffpa_build/pack.py"
    text = pack.read_text()
    assert text.count('"__init__.py": b""') == 1
    pack.write_text(text.replace('"__init__.py": b""', '"__init__.py": __file__.encode()'))
    assert reproduce.main(["--no-isolation", "--dist", "ffpa-extra"]) == 1
    assert re.search(r"differs: dist/ffpa_extra.*\.whl: ffpa_pack_extra/__init__.py: byte \d+", capsys.readouterr().err)
