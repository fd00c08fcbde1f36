"""The Nix flake, evaluated without a network against ci/nix/stub: every attribute is instantiated, none is built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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


def copy(folder: Path, *more: str) -> Path:
    """What the flake reads, and `more` of the tree."""
    tree = folder / "source"
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("variants", "packages", "ci/nix", "flake.nix", "VERSION", *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=ignore)
        else:
            shutil.copy2(ROOT / name, tree / name)
    return tree


def instantiate(tree: Path, output: str) -> dict[str, dict[str, str]]:
    """system -> attribute -> path of the derivation, for one output of the flake."""
    paths = "systems: builtins.mapAttrs (_: builtins.mapAttrs (_: package: package.drvPath)) systems"
    result = nix(tree, "eval", "--json", f"path:{tree}#{output}", "--apply", paths)
    assert result.returncode == 0, result.stderr
    found: dict[str, dict[str, str]] = json.loads(result.stdout)
    for paths_of_system in found.values():
        for path in paths_of_system.values():
            assert Path(f"{tree.parent}/store{path}").is_file(), f"{path} was evaluated, but not written to the store"
    return found


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


def test_every_attribute_is_instantiated_for_every_system(tree: Path, packages: dict[str, dict[str, str]]) -> None:
    shown = nix(tree, "flake", "show", "--json", f"path:{tree}")
    assert shown.returncode == 0, shown.stderr
    outputs = json.loads(shown.stdout)
    instantiated = {output: instantiate(tree, output) for output in outputs}
    for output, systems in outputs.items():
        assert {system: set(rows) for system, rows in instantiated[output].items()} == {
            system: set(rows) for system, rows in systems.items()
        }
        assert set(systems) == SYSTEMS
    assert instantiated["packages"] == packages
    assert {output: set(rows["x86_64-linux"]) for output, rows in outputs.items() if output != "packages"} == {
        "checks": {"generated-files", "packs"},
        "devShells": {"default"},
    }


def test_the_flake_has_the_shape_that_nix_expects(tree: Path) -> None:
    result = nix(tree, "flake", "check", "--no-build", f"path:{tree}")
    assert result.returncode == 0, result.stderr


def test_the_check_of_generated_files_passes_with_a_python_that_has_no_packages(tmp_path: Path) -> None:
    """The commands of that derivation, run: what Nix would build but for the sandbox."""
    tree = copy(tmp_path, "src", "csrc", "docs", "recipe", ".github", "pyproject.toml", "LICENSE")
    (command,) = (
        row["command"]
        for name, row in closure(tree, "checks.x86_64-linux.generated-files").items()
        if name == "ffpa-generated-files"
    )
    assert "/nix/store/" in command
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)

    def run(command: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "out": str(tmp_path / "out")}
        return subprocess.run(["bash", "-euc", command], env=environment, capture_output=True, text=True, check=False)

    command = command.replace("/nix/store/", f"{tree.parent}/store/nix/store/")
    result = run(command)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out").is_file()
    # It would notice a file that is not what the tables say.
    page = next(Path(f"{tree.parent}/store/nix/store").glob("*-source/docs/build-flags.md"))
    page.parent.chmod(0o755)
    page.chmod(0o644)
    page.write_text(page.read_text() + "\nmore\n")
    assert run(command).returncode != 0


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
