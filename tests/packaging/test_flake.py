"""The Nix flake, evaluated without a network against ci/nix/stub: every attribute is instantiated, none is built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ffpa_build.spec import load_spec
from small_tree import ROOT

pytestmark = pytest.mark.skipif(shutil.which("nix") is None, reason="nix is not installed; Debian has it as nix-bin")

SYSTEMS = {"x86_64-linux", "aarch64-linux"}


def nix(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs nix on a copy of the tree, with a store and a home beside it."""
    options = ["--extra-experimental-features", "nix-command flakes", "--offline", "--no-write-lock-file"]
    options += ["--store", str(tree.parent / "store"), "--override-input", "nixpkgs", f"path:{tree / 'ci/nix/stub'}"]
    return subprocess.run(
        ["nix", *command, *options],
        env={**os.environ, "HOME": str(tree.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def copy(folder: Path) -> Path:
    tree = folder / "source"
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("variants", "packages", "ci/nix"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for name in ("flake.nix", "VERSION"):
        shutil.copy2(ROOT / name, tree / name)
    return tree


def instantiate(tree: Path, output: str) -> dict[str, dict[str, str]]:
    """system -> attribute -> path of the derivation, for one output of the flake."""
    paths = "systems: builtins.mapAttrs (_: builtins.mapAttrs (_: package: package.drvPath)) systems"
    result = nix(tree, "eval", "--json", f"path:{tree}#{output}", "--apply", paths)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(tmp_path_factory.mktemp("flake"))


@pytest.fixture(scope="module")
def packages(tree: Path) -> dict[str, dict[str, str]]:
    return instantiate(tree, "packages")


def closure(tree: Path, attribute: str) -> dict[str, Any]:
    """Every derivation that an attribute needs, by the name of the derivation."""
    result = nix(tree, "show-derivation", "--recursive", f"path:{tree}#{attribute}")
    assert result.returncode == 0, result.stderr
    return {row["env"]["name"]: row["env"] for row in json.loads(result.stdout).values()}


def test_every_pack_and_every_cuda_major_is_a_package(packages: dict[str, dict[str, str]]) -> None:
    expected = {pack.distribution for pack in load_spec(ROOT).packs.values()}
    expected |= {"ffpa-cuda12", "ffpa-cuda13", "default"}
    assert {system: set(names) for system, names in packages.items()} == dict.fromkeys(SYSTEMS, expected)


def test_the_default_is_the_oldest_compiler(packages: dict[str, dict[str, str]]) -> None:
    for names in packages.values():
        assert names["default"] == names["ffpa-cuda12"] != names["ffpa-cuda13"]


@pytest.mark.parametrize(("major", "nvcc"), [("12", "12.9.86"), ("13", "13.0.88")])
def test_a_package_has_every_pack_built_by_its_own_compiler(tree: Path, major: str, nvcc: str) -> None:
    spec = load_spec(ROOT)
    found = closure(tree, f"packages.x86_64-linux.ffpa-cuda{major}")
    assert [name for name in found if name.startswith("cuda_nvcc")] == [f"cuda_nvcc-{nvcc}"]
    for pack in spec.packs.values():
        row = found[f"python3-{pack.distribution}-{spec.version}"]
        assert row["FFPA_BUILD_TOOLCHAIN"] == f"nvcc-{nvcc.rpartition('.')[0]}"
        assert row["FFPA_BUILD_PRESET"] == "release"
        assert row["sourceRoot"] == f"source/packages/{pack.distribution}"
    # For Pythons that nixpkgs does not have.
    assert not any(name.startswith("tomli") for name in found)


def test_checks_and_the_shell_are_derivations(tree: Path) -> None:
    checks = instantiate(tree, "checks")
    assert {system: set(names) for system, names in checks.items()} == dict.fromkeys(
        SYSTEMS, {"generated-files", "packs"}
    )
    assert set(instantiate(tree, "devShells")) == SYSTEMS


def test_a_new_pack_is_a_package_without_a_change_to_the_flake(tmp_path: Path) -> None:
    tree = copy(tmp_path)
    with (tree / "variants/packs.toml").open("a") as file:
        file.write('\n[fp4]\ndistribution = "ffpa-fp4"\n')
    shutil.copytree(tree / "packages/ffpa-sm120", tree / "packages/ffpa-fp4")
    assert "ffpa-fp4" in instantiate(tree, "packages")["x86_64-linux"]


def test_a_compiler_of_another_version_is_refused(tmp_path: Path) -> None:
    tree = copy(tmp_path)
    stub = tree / "ci/nix/stub/default.nix"
    stub.write_text(stub.read_text().replace("12.9.86", "12.9.41"))
    result = nix(tree, "eval", f"path:{tree}#packages.x86_64-linux.ffpa-core.drvPath")
    assert result.returncode != 0
    assert "cudaPackages_12_9.cuda_nvcc of this nixpkgs is 12.9.41" in result.stderr
    assert "variants/toolchains/nvcc-12.9.toml pins 12.9.86" in result.stderr
