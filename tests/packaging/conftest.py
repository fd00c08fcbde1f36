"""A small copy of the source tree, and a builder of its distributions."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from small_tree import FAMILIES, KERNEL, ONE_KERNEL, PACKS, PRESETS, ROOT, Build, run


@pytest.fixture(scope="session")
def small_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with a tiny family, a further pack `ffpa-extra`, and packages/ generated from that."""
    tree = tmp_path_factory.mktemp("tree") / "ffpa"
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "kernels")
    for folder in ("variants", "src", "csrc", "packages/ffpa"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignore)
    for file in ("VERSION", "LICENSE", "pyproject.toml"):
        shutil.copy2(ROOT / file, tree / file)
    (tree / "variants/families.toml").write_text(FAMILIES)
    (tree / "variants/packs.toml").write_text(PACKS)
    (tree / "variants/presets.toml").write_text(PRESETS)
    kernel = tree / "csrc/kernels/tiny/tiny.cuh"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(KERNEL)
    run(tree, sys.executable, "-m", "ffpa_build.distributions", "write")
    return tree


@pytest.fixture(scope="session")
def build(small_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """build(distribution, kind="wheel", tree=..., **environment) -> the file, made without isolation or network."""

    def build(distribution: str, kind: str = "wheel", source: Path | None = None, **environment: str) -> Path:
        out = tmp_path_factory.mktemp("out")
        cache = tmp_path_factory.getbasetemp() / "cache"
        run(
            small_tree,
            *(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)),
            cwd=source or small_tree / "packages" / distribution,
            **{"FFPA_BUILD_CACHE": str(cache), **ONE_KERNEL, **environment},
        )
        (file,) = out.iterdir()
        return file

    return build


@pytest.fixture(scope="session")
def core(build: Build) -> Path:
    """The core wheel with one kernel. Its launcher takes a while to compile, so tests share it."""
    return build("ffpa-core")


@pytest.fixture(scope="session")
def extra(build: Build) -> Path:
    """The wheel of the further pack."""
    return build("ffpa-extra")
