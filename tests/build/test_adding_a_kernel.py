"""docs/adding-a-kernel.md, followed to the letter in a copy of the tree.

Blocks of code are applied, commands are run and what they print is compared with the page. A sentence before a block
says what it is for: "New file `path`", "Append to `path`" or "In `path`", whose block is a diff.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from build_tree import REPOSITORY

pytest.importorskip("torch", reason="the page ends with a call")

PAGE = REPOSITORY / "docs/adding-a-kernel.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"(New file|Append to|In) `([^`]+)`[^`\n]*:\s*$")


@dataclass(frozen=True)
class Block:
    """A block of the page: its language, its text, and what the sentence before it says to do with it."""

    language: str
    text: str
    action: str
    path: str


def blocks(page: str) -> list[Block]:
    found = []
    end = 0
    for match in _BLOCK.finditer(page):
        target = _TARGET.search(page[end : match.start()])
        action, path = target.groups() if target else ("", "")
        found.append(Block(match[1], match[2], action, path))
        end = match.end()
    return found


def apply(block: Block, tree: Path) -> None:
    path = tree / block.path
    if block.action == "New file":
        assert not path.exists(), f"{block.path} is in the tree already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    elif block.action == "Append to":
        path.write_text(path.read_text() + block.text)
    else:
        lines = block.text.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        text = path.read_text()
        assert text.count(old) == 1, f"{block.path} has this {text.count(old)} times:\n{old}"
        path.write_text(text.replace(old, new))


def commands(block: Block) -> list[tuple[str, str]]:
    """(command, what it prints) for each `$` of a console block."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].rstrip("\n"), ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def shown(text: str) -> re.Pattern[str]:
    """What the page shows, `...` standing for anything; as a line of its own, for any number of lines."""
    parts = [re.escape(part).replace(r"\.\.\.", ".*") for part in re.split(r"^\.\.\.\n", text, flags=re.MULTILINE)]
    return re.compile("(?:.*\n)*".join(parts))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("clone") / "ffpa"
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("csrc", "src", "variants", "packages", "tests", "VERSION", "LICENSE", "pyproject.toml"):
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, tree / name, ignore=ignore)
        else:
            shutil.copy2(REPOSITORY / name, tree / name)
    return tree


def test_following_the_page_leads_to_a_kernel_that_the_runtime_chooses(
    tree: Path, tmp_path: Path, toolchain_cache: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "toolchains").symlink_to(toolchain_cache / "toolchains")
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "src",
        "FFPA_BUILD_CACHE": str(cache),
        "CUDA_VISIBLE_DEVICES": "",  # the page shows a machine without a GPU
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    run = 0
    for block in blocks(PAGE.read_text()):
        if block.language != "console":
            apply(block, tree)
            continue
        for command, expected in commands(block):
            result = subprocess.run(
                ["bash", "-euc", command], cwd=tree, env=environment, capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, f"$ {command}\n{result.stdout}\n{result.stderr}"
            assert shown(expected).fullmatch(result.stdout), f"$ {command}\n{result.stdout}\nthe page:\n{expected}"
            run += 1
    assert run >= 8


def test_the_page_has_every_kind_of_block_and_each_block_a_purpose() -> None:
    found = blocks(PAGE.read_text())
    assert {block.action for block in found if block.language != "console"} == {"New file", "Append to", "In"}
    assert {block.path for block in found if block.path} == {
        "csrc/kernels/row/warp.cuh",
        "variants/families.toml",
        "variants/packs.toml",
        "try_row.py",
        "tests/gpu/test_row.py",
    }


def test_other_output_than_the_page_shows_is_noticed() -> None:
    page = shown("a ... b\n...\nlast\n")
    assert page.fullmatch("a 1 b\nlast\n") and page.fullmatch("a  b\nmore\nmore\nlast\n")
    for text in ("a 1 c\nlast\n", "a 1 b\nlast\nmore\n", "a 1 b\n", "x\na 1 b\nlast\n"):
        assert page.fullmatch(text) is None
