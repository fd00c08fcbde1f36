"""The launcher on platforms that this machine is not: cross-compiled against tvm-ffi's wheels for them.

A Windows wheel is compiled by Visual C++, which does not run here. MinGW stands in for it: it shows that the sources
need nothing of POSIX, that the DLL finds all it takes from tvm-ffi, and what it exports.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ffpa_attn.library import file_name
from ffpa_build.host_compiler import MSVC_FLAGS, Gcc, Msvc, TvmFfi, host_compiler
from ffpa_build.inspect_wheel import launcher_differences
from ffpa_build.launcher import CSRC, build_launcher
from ffpa_build.wheel import tag

AARCH64 = "aarch64-linux-gnu-g++"
MINGW = "x86_64-w64-mingw32-g++-posix"
WINE = "/usr/lib/wine/wine64"
EXPORTS = {
    f"__tvm_ffi_{name}"
    for name in re.findall(r"^TVM_FFI_DLL_EXPORT_TYPED_FUNC\((\w+),", (CSRC / "launcher/exports.cc").read_text(), re.M)
}
# tvm-ffi's headers know Windows by Visual C++ alone. Its class with a vtable is used from the headers, not imported.
MINGW_FLAGS = ["-DTVM_FFI_DLL=", "-DTVM_FFI_DLL_EXPORT=__declspec(dllexport)", "-static"]
MISSING_IN_MINGW = """\
#include <cstdlib>
inline int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  *out = __mingw_aligned_malloc(size, alignment);
  return *out == nullptr;
}
"""

Site = Callable[[str], Path]


def program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed; Debian has it in {package}")
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """site(platform) -> the files of the installed tvm-ffi's wheel for that platform."""

    def site(platform: str) -> Path:
        folder = tmp_path_factory.mktemp(platform)
        requirement = f"apache-tvm-ffi=={metadata.version('apache-tvm-ffi')}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--python-version", "3.12", "--platform", platform, "--dest", str(folder), requirement]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            pytest.skip(f"pip cannot fetch {requirement} for {platform}: {result.stderr.strip().splitlines()[-1:]}")
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
            archive.extractall(folder)
        return folder

    return site


@pytest.fixture(scope="module")
def windows(site: Site) -> Path:
    program(MINGW, "g++-mingw-w64-x86-64-posix")
    folder = site("win_amd64")
    (folder / "missing.h").write_text(MISSING_IN_MINGW)
    return folder


def mingw(windows: Path, *arguments: str) -> None:
    library = TvmFfi.of_wheel(windows)
    command = [MINGW, "-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", *MINGW_FLAGS, "-I."]
    command += ["-include", str(windows / "missing.h"), f"-isystem{library.include}", *arguments]
    command += [str(library.libraries / "tvm_ffi.lib")]
    result = subprocess.run(command, cwd=CSRC, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def dll(windows: Path) -> Path:
    out = windows / file_name("win32")
    mingw(windows, "-shared", *map(str, sorted(CSRC.glob("launcher/*.cc"))), "-o", str(out))
    return out


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux-x86_64", "py3-none-linux_x86_64"),
        ("linux-aarch64", "py3-none-linux_aarch64"),
        ("win-amd64", "py3-none-win_amd64"),
    ],
)
def test_a_wheel_is_tagged_for_its_platform(platform: str, expected: str) -> None:
    assert tag(platform) == expected


def test_there_are_functions_to_export() -> None:
    assert len(EXPORTS) == 5 and "__tvm_ffi_make_attention_plan" in EXPORTS


def test_for_aarch64_it_compiles_and_exports_and_needs_what_it_should(site: Site, tmp_path: Path) -> None:
    compiler = program(AARCH64, "g++-aarch64-linux-gnu")
    tvm_ffi = TvmFfi.of_wheel(site("manylinux_2_28_aarch64"))
    out = build_launcher(tmp_path / file_name("linux"), Gcc((compiler, "-Werror"), tvm_ffi))
    content = out.read_bytes()
    elf = ELFFile(io.BytesIO(content))
    assert elf["e_machine"] == "EM_AARCH64"
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    assert {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name} == EXPORTS
    assert launcher_differences(content) == []


def test_for_windows_it_links_and_exports_its_functions_only(dll: Path) -> None:
    result = subprocess.run(["x86_64-w64-mingw32-objdump", "-p", str(dll)], check=True, capture_output=True, text=True)
    table = result.stdout.partition("[Ordinal/Name Pointer] Table")[2].partition("\n\n")[0]
    assert set(re.findall(r"\] (?:\+base\[ *\d+\] +[0-9a-f]+ )?(\w+)$", table, re.M)) == EXPORTS
    # The compiler's own libraries are inside; these are of tvm-ffi and of every Windows.
    libraries = set(re.findall(r"DLL Name: (\S+)", result.stdout))
    assert "tvm_ffi.dll" in libraries
    assert libraries <= {"tvm_ffi.dll", "KERNEL32.dll", "msvcrt.dll"}


def test_under_wine_its_functions_answer_and_structs_have_the_sizes_of_linux(
    windows: Path, dll: Path, tmp_path: Path
) -> None:
    wine = program(WINE, "wine64")
    caller = windows / "tvm_ffi/lib/caller.exe"  # beside the libraries, where Windows looks
    mingw(windows, str(Path(__file__).with_name("windows_caller.cc")), "-o", str(caller))
    for path in windows.glob("apache_tvm_ffi.libs/*.dll"):
        shutil.copy2(path, caller.parent)
    environment = {"PATH": "/usr/bin:/bin", "WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all"}
    command = [wine, str(caller), str(caller.parent / "tvm_ffi.dll"), str(dll)]
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    finally:
        subprocess.run([str(Path(wine).with_name("wineserver64")), "-k"], env=environment, check=False)
    assert result.returncode == 0, result.stderr
    said = dict(line.split("=") for line in result.stdout.split())
    assert said.pop("error") == "TypeError"
    assert said == sizes_here(tmp_path)


def sizes_here(folder: Path) -> dict[str, str]:
    source = folder / "sizes.cc"
    source.write_text(
        '#include <cstdio>\n#include "abi/attention_params.h"\nusing namespace ffpa::abi;\n'
        'int main() { std::printf("%zu %zu %d", sizeof(AttentionParams), sizeof(TmaAttentionParams), kPackAbi); }\n'
    )
    subprocess.run(["g++", "-std=c++17", f"-I{CSRC}", str(source), "-o", str(folder / "sizes")], check=True)
    result = subprocess.run([str(folder / "sizes")], check=True, capture_output=True, text=True)
    return dict(zip(("attention", "attention_tma", "pack_abi"), result.stdout.split(), strict=True))


def test_on_windows_tvm_ffi_drives_visual_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that it would run; the compiler itself is not here."""
    from tvm_ffi.cpp import extension

    def build_ninja(folder: str) -> None:
        scripts.append(Path(folder, "build.ninja").read_text())
        Path(folder, "_launcher.dll").write_bytes(b"MZ")

    scripts: list[str] = []
    monkeypatch.setattr(extension, "IS_WINDOWS", True)
    monkeypatch.setattr(extension, "build_ninja", build_ninja)
    monkeypatch.delenv("CXX", raising=False)
    compiler = host_compiler(platform="win32")
    assert compiler == Msvc()
    out = build_launcher(tmp_path / file_name("win32"), compiler)
    assert out.read_bytes() == b"MZ" and [path.name for path in tmp_path.iterdir()] == ["_launcher.dll"]
    (script,) = scripts
    variables = dict(line.split(" = ", 1) for line in script.splitlines() if re.match(r"\w+ = ", line))
    assert variables["cxx"] == "cl"
    assert {"/std:c++17", "/EHsc", "/O2", *MSVC_FLAGS} <= set(variables["cxxflags"].split())
    assert not [flag for flag in variables["cxxflags"].split() if flag.startswith(("-f", "-W"))]
    assert {"/DLL", "/Brepro", "tvm_ffi.lib"} <= set(variables["ldflags"].replace("libtvm_ffi", "tvm_ffi").split())
    for source in CSRC.glob("launcher/*.cc"):
        assert str(source) in script


def test_what_visual_cpp_says_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_ffi.cpp import extension

    from ffpa_build.errors import CompileError

    def build_ninja(folder: str) -> None:
        raise RuntimeError("ninja exited with status 1\nstdout:\ndriver.cc(1): error C2059")

    monkeypatch.setattr(extension, "build_ninja", build_ninja)
    with pytest.raises(CompileError, match=r"(?s)did not compile.*error C2059"):
        build_launcher(tmp_path / file_name("win32"), Msvc())
    assert list(tmp_path.iterdir()) == []
