"""`python -m ffpa_build.workflows check | write`: the workflows below .github/, from the tables.

`release.yml` compiles the release preset in shards, each arch of each pack in as many as its kernels need. A shard
leaves its part of the cache; the jobs that make the wheels join the parts and find every kernel there.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ffpa_build import generated
from ffpa_build.distributions import META, is_core
from ffpa_build.matrix import expand
from ffpa_build.model import Spec
from ffpa_build.selection import Selection

FOLDER = Path(".github", "workflows")
PRESET = "release"
KERNELS_PER_SHARD = 100
_HEADER = "# Made from variants/: python -m ffpa_build.workflows write\n"


@dataclass(frozen=True)
class Shard:
    """One job: part `index` of `count` of a pack's kernels for an arch."""

    pack: str
    arch: str
    index: int
    count: int


def shards(spec: Spec) -> list[Shard]:
    """The jobs that together compile the release preset, in the order of the tables."""
    selection = Selection.make(spec, PRESET)
    kernels = Counter((variant.pack, variant.arch.name) for variant in expand(spec, selection).variants)
    found = []
    for (pack, arch), number in kernels.items():
        count = -(-number // KERNELS_PER_SHARD)
        found += [Shard(pack, arch, index, count) for index in range(1, count + 1)]
    return found


def render(spec: Spec) -> dict[Path, str]:
    """The text of every workflow."""
    matrix = "".join(
        f"          - {{ pack: {shard.pack}, arch: {shard.arch}, part: {shard.index}, parts: {shard.count} }}\n"
        for shard in shards(spec)
    )
    packs = [pack.distribution for pack in spec.packs.values() if not is_core(pack)]
    (core,) = (pack.distribution for pack in spec.packs.values() if is_core(pack))
    release = _RELEASE.replace("@matrix@\n", matrix)
    release = release.replace("@options@", " ".join(f"--dist {name}" for name in [META, *packs]))
    release = release.replace("@core@", core).replace("@preset@", PRESET)
    release = release.replace("@lock@", spec.default_toolchain.lock.as_posix())
    return {FOLDER / "ci.yml": _HEADER + _CI, FOLDER / "release.yml": _HEADER + release}


_CI = """\
name: CI

on:
  push:
    branches: [main]
  pull_request:

permissions:
  contents: read

jobs:
  check:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: >-
          sudo apt-get update && sudo apt-get install --yes --no-install-recommends
          nix-bin g++-aarch64-linux-gnu g++-mingw-w64-x86-64-posix wine64
      - run: .ci/run
"""

_RELEASE = """\
name: Release

on:
  push:
    tags: ["v*"]
  workflow_dispatch:

permissions:
  contents: read

env:
  FFPA_BUILD_PRESET: @preset@

jobs:
  kernels:
    strategy:
      fail-fast: false
      matrix:
        include:
@matrix@
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: >-
          python -m pip install --require-hashes --only-binary :all: -r @lock@
      - run: >-
          python -m ffpa_build build
          --pack ${{ matrix.pack }} --arch ${{ matrix.arch }} --shard ${{ matrix.part }}/${{ matrix.parts }}
          --cache-dir build/cache
        env:
          PYTHONPATH: src
      - uses: actions/upload-artifact@v4
        with:
          name: kernels-${{ matrix.pack }}-${{ matrix.arch }}-${{ matrix.part }}
          path: build/cache/cubins
          if-no-files-found: error

  packs:
    needs: kernels
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - uses: actions/download-artifact@v4
        with:
          pattern: kernels-*
          path: build/cache/cubins
          merge-multiple: true
      - run: python -m pip install nox
      - run: nox -s release -- --out dist @options@
        env:
          FFPA_BUILD_CACHE: ${{ github.workspace }}/build/cache
      - run: python -m pip install build
      - run: python -m build --sdist --outdir dist packages/@core@
      - uses: actions/upload-artifact@v4
        with:
          name: wheels-packs
          path: dist
          if-no-files-found: error

  core:
    needs: kernels
    strategy:
      fail-fast: false
      matrix:
        include:
          - { runner: ubuntu-24.04, arch: x86_64 }
          - { runner: ubuntu-24.04-arm, arch: aarch64 }
    runs-on: ${{ matrix.runner }}
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - uses: actions/download-artifact@v4
        with:
          pattern: kernels-*
          path: build/cache/cubins
          merge-multiple: true
      - run: python -m pip install --upgrade pip
      - run: python -m pip install --group cibuildwheel
      - run: >-
          python -m cibuildwheel packages/@core@
          --config-file ci/cibuildwheel.toml --archs ${{ matrix.arch }} --output-dir dist
      - uses: actions/upload-artifact@v4
        with:
          name: wheels-core-${{ matrix.arch }}
          path: dist
          if-no-files-found: error
"""


if __name__ == "__main__":
    sys.exit(generated.main("ffpa_build.workflows", "The workflows of CI from the tables.", render))
