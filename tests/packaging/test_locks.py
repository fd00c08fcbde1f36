"""The locks of the release build: complete, in step with the tables, and without the address of any index."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ffpa_build import locks
from ffpa_build.locks import LockError, parse
from ffpa_build.spec import load_spec
from small_tree import ROOT

CUDA12 = "ci/locks/cuda12.txt"
DIGEST = "0" * 64


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the check reads of the tree."""
    for name in ("variants", "ci/locks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("VERSION", "pyproject.toml", "ci/build-constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def edit(file: Path, change: Callable[[str], str]) -> None:
    text = file.read_text(encoding="utf-8")
    assert change(text) != text
    file.write_text(change(text), encoding="utf-8")


def without(name: str) -> Callable[[str], str]:
    """Takes a package's rows out of a lock."""

    def drop(text: str) -> str:
        kept, dropping = [], False
        for line in text.splitlines(keepends=True):
            if not line.startswith((" ", "#")):
                dropping = line.startswith(f"{name}==")
            kept += [] if dropping else [line]
        return "".join(kept)

    return drop


def test_the_locks_match_the_tables() -> None:
    assert locks.differences(load_spec(ROOT)) == []


def test_there_is_a_lock_for_every_nvrtc_and_for_no_other_compiler() -> None:
    spec = load_spec(ROOT)
    found = {path.as_posix(): toolchain.name for path, toolchain in locks.toolchains(spec).items()}
    assert found == {CUDA12: "nvrtc-12.9", "ci/locks/cuda13.txt": "nvrtc-13.0"}
    assert {path.name for path in (ROOT / "ci/locks").iterdir()} == {Path(path).name for path in found}
    with pytest.raises(LockError, match="nvcc-13.0: there are locks for NVRTC only"):
        locks.path_of(spec.toolchains["nvcc-13.0"])


@pytest.mark.parametrize(
    "change, message",
    [
        (without("ninja"), "ninja: missing for Python 3.10, x86_64"),
        (without("nvidia-cuda-nvrtc-cu12"), "nvidia-cuda-nvrtc-cu12: missing for Python 3.13, aarch64"),
        (lambda text: text.replace("\nhatchling==", "\nhatchling==0."), "hatchling: 0.1.33.0 is locked for"),
        (lambda text: text + f"click==8.0 --hash=sha256:{DIGEST}\n", "click: more than one version for Python 3.10"),
        (lambda text: "--index-url https://mirror.example/simple\n" + text, "--index-url"),
        (lambda text: text + "# from https://mirror.example/simple\n", "names the address of an index"),
        (lambda text: text + f"loose>=1 --hash=sha256:{DIGEST}\n", "must be name==version"),
        (lambda text: text + "bare==1\n", "'bare==1': must have hashes"),
        (lambda text: text + f"weak==1 --hash=md5:{DIGEST}\n", "'weak==1': must have hashes"),
        (lambda text: text + f"u @ file:///u.whl --hash=sha256:{DIGEST}\n", "must be name==version"),
    ],
)
def test_a_lock_with_a_mistake_is_refused(tree: Path, change: Callable[[str], str], message: str) -> None:
    edit(tree / CUDA12, change)
    found = locks.differences(load_spec(tree))
    assert found and all(line.startswith(f"{CUDA12}: ") for line in found)
    assert any(message in line for line in found), found
    assert locks.main(["check", "--tree", str(tree)]) == 1


def test_a_changed_table_asks_for_another_lock(tree: Path) -> None:
    toolchain = load_spec(tree).toolchains["nvrtc-12.9"]
    edit(tree / "pyproject.toml", lambda text: text.replace('"click>=8.1"', '"click>=99"'))
    edit(tree / "variants/toolchains/nvrtc-12.9.toml", lambda text: text.replace(toolchain.hashes[0][0], DIGEST))
    found = locks.differences(load_spec(tree))
    assert any("click: " in line and line.endswith("wanted: >=99") for line in found)
    assert any(f"{toolchain.requirements[0]}: the hashes are not those of variants/" in line for line in found)


def test_an_absent_lock_is_named(tree: Path) -> None:
    (tree / CUDA12).unlink()
    (line,) = locks.differences(load_spec(tree))
    assert line.startswith(f"{CUDA12}: No such file")


def test_an_environment_is_compared_with_the_lock(tree: Path) -> None:
    spec = load_spec(tree)
    rows = [f"hatchling==0.0.1 --hash=sha256:{DIGEST}", f"not-there==1 --hash=sha256:{DIGEST}"]
    rows += [f"other-system==1 ; sys_platform == 'nowhere' --hash=sha256:{DIGEST}"]
    (tree / CUDA12).write_text("\n".join(rows) + "\n")
    found = locks.environment_differences(spec, spec.toolchains["nvrtc-12.9"])
    assert [line.split(", ")[-1] for line in found] == ["locked: 0.0.1", "locked: 1"]
    assert found[1] == "not-there: not installed, locked: 1"


def test_continued_lines_and_markers_are_read() -> None:
    hashes = f"    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{'1' * 64}\n"
    text = f"# why\na-b==1.2 ; python_version < '3.11' \\\n{hashes}"
    (row,) = parse(text, "x")
    assert (row.name, row.version, row.hashes) == ("a-b", "1.2", (DIGEST, "1" * 64))
    assert row.applies({"python_version": "3.10"}) and not row.applies({"python_version": "3.11"})
