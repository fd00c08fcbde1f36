"""The launcher's file: reproducible, and loadable where the wheel says it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from ffpa_build.errors import CompileError, ToolchainError
from ffpa_build.host_compiler import Gcc
from ffpa_build.launcher import CSRC, build_launcher

# The symbol versions of the oldest libraries that a manylinux_2_28 wheel may meet.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


def test_two_builds_in_two_places_give_the_same_bytes(tmp_path: Path, launcher_library: Path) -> None:
    csrc = tmp_path / "elsewhere" / "csrc"
    for folder in ("abi", "launcher"):
        shutil.copytree(CSRC / folder, csrc / folder)
    again = build_launcher(tmp_path / "out" / launcher_library.name, csrc=csrc)
    assert again.read_bytes() == launcher_library.read_bytes()
    assert [path.name for path in again.parent.iterdir()] == [again.name]


def test_it_needs_only_old_symbols_and_tvm_ffi(launcher_library: Path) -> None:
    with launcher_library.open("rb") as file:
        elf = ELFFile(file)
        needed = [
            tag.needed
            for section in elf.iter_sections()
            if isinstance(section, DynamicSection)
            for tag in section.iter_tags("DT_NEEDED")
        ]
        versions = [
            version.name
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, auxiliaries in section.iter_versions()
            for version in auxiliaries
        ]
    assert "libtvm_ffi.so" in needed
    assert {re.split(r"\.so", name)[0] for name in needed} <= {"libtvm_ffi", "libstdc++", "libgcc_s", "libm", "libc"}
    assert versions
    for version in versions:
        name, _, number = version.partition("_")
        assert tuple(int(part) for part in number.split(".")) <= NEWEST[name], version


def test_it_exports_only_its_functions(launcher_library: Path) -> None:
    with launcher_library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        defined = {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}
    assert "__tvm_ffi_make_attention_plan" in defined
    assert {name for name in defined if not name.startswith("__tvm_ffi_")} <= {"", "_init", "_fini"}


def test_no_path_of_the_build_machine_is_inside(launcher_library: Path) -> None:
    content = launcher_library.read_bytes()
    assert str(CSRC.parent).encode() not in content
    assert b"site-packages" not in content


def test_a_compile_error_shows_command_and_output(tmp_path: Path) -> None:
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC / "launcher", csrc / "launcher")
    (csrc / "launcher" / "broken.cc").write_text("this is not C++\n")
    for path in (csrc / "launcher").glob("*.cc"):
        if path.name != "broken.cc":
            path.unlink()
    with pytest.raises(CompileError, match=r"(?s)g\+\+ .*launcher/broken.cc.*error"):
        build_launcher(tmp_path / "out" / "_launcher.so", csrc=csrc)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"needs the C\+\+ compiler no-such-compiler, install it"):
        build_launcher(tmp_path / "_launcher.so", Gcc(("no-such-compiler",)))
    assert list(tmp_path.iterdir()) == []
