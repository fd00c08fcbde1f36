"""The bill of materials in every wheel, and the commit that it names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ffpa_build import sbom
from ffpa_build.spec import load_spec
from small_tree import ROOT, Build, members

MATERIALS = [sbom.Material("some-compiler", "1.2", "compiles"), sbom.Material("g++", "12", "links", pypi=False)]


def bill(wheel: Path) -> dict[str, Any]:
    (name,) = (name for name in members(wheel) if ".dist-info/sboms/" in name)
    assert name.endswith(".cdx.json")
    return json.loads(members(wheel)[name])


def properties(wheel: Path) -> dict[str, str]:
    return {row["name"]: row["value"] for row in bill(wheel)["metadata"].get("properties", [])}


@pytest.fixture
def repository(small_tree: Path, tmp_path: Path) -> Path:
    """The small tree in a git repository, all of it committed."""
    tree = tmp_path / "repository"
    shutil.copytree(small_tree, tree, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "a"]):
        subprocess.run([*git, *command], check=True)
    return tree


def head(tree: Path) -> str:
    result = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return result.stdout.strip()


def test_every_wheel_names_what_made_it(core: Path, extra: Path, build: Build) -> None:
    for wheel, distribution in ((core, "ffpa-core"), (extra, "ffpa-extra"), (build("ffpa"), "ffpa")):
        data = bill(wheel)
        assert data["bomFormat"] == "CycloneDX"
        assert data["metadata"]["component"]["name"] == distribution
        assert data["metadata"]["component"]["version"] == wheel.name.split("-")[1]
        assert "timestamp" not in data["metadata"]
    manifest = json.loads(members(extra)["ffpa_pack_extra/manifest.json"])
    assert properties(extra)["ffpa:source-digest"] == manifest["source_digest"]
    assert properties(extra)["ffpa:compiler"] == " ".join(manifest["compiler"][key] for key in ("name", "version"))
    assert {row["name"] for row in bill(extra)["components"]} >= {"nvidia-cuda-nvrtc-cu12"}
    assert "apache-tvm-ffi" in {row["name"] for row in bill(core)["components"]}


@pytest.mark.parametrize("distribution", ["ffpa-core", "ffpa-extra", "ffpa"])
def test_its_library_finds_it_valid(build: Build, core: Path, distribution: str) -> None:
    pytest.importorskip("jsonschema", reason="cyclonedx-python-lib validates with jsonschema")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wheel = core if distribution == "ffpa-core" else build(distribution)
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    data = bill(wheel)
    assert validator.validate_str(json.dumps(data)) is None
    data["metadata"]["component"]["unknown"] = 1
    assert validator.validate_str(json.dumps(data)) is not None


def test_it_names_compilers_headers_digest_and_nothing_that_was_not_used(core: Path) -> None:
    assert set(properties(core)) == {
        *("ffpa:compiler", "ffpa:compiler-flags", "ffpa:source-digest", "ffpa:host-compiler"),
        # The small tree is in no repository, so there is no ffpa:commit.
    }
    assert re.match(r"(g\+\+|\S*c\+\+|clang\S*) .*\d+\.\d+", properties(core)["ffpa:host-compiler"])
    default = load_spec(ROOT).default_toolchain
    used = {f"{row['name']}=={row['version']}" for row in bill(core)["components"]}
    assert used == {*default.requirements, f"apache-tvm-ffi=={metadata.version('apache-tvm-ffi')}"}
    includes = [
        line
        for path in (ROOT / "csrc").rglob("*.*h")
        for line in path.read_text().splitlines()
        if line.startswith("#include")
    ]
    assert includes and not [line for line in includes if "cutlass/" in line or "cute/" in line], (
        "kernels include CUTLASS: its version belongs into the bill of materials"
    )


def test_a_compiler_of_the_system_is_not_named_as_a_package() -> None:
    toolchain = load_spec(ROOT).toolchains["nvcc-13.0"]
    (system,) = sbom.compiler_materials(toolchain, from_packages=False)
    assert (system.name, system.version, system.pypi) == ("nvcc", toolchain.version, False)
    packages = sbom.compiler_materials(toolchain, from_packages=True)
    assert {f"{row.name}=={row.version}" for row in packages} == set(toolchain.requirements)
    assert all(row.pypi for row in packages)


def test_the_same_contents_give_the_same_text_and_others_another_serial_number() -> None:
    first = sbom.render("a", "1", MATERIALS, {"commit": "x", "compiler": None})
    assert sbom.render("a", "1", reversed(MATERIALS), {"commit": "x"}) == first
    other = sbom.render("a", "1", MATERIALS, {"commit": "y"})
    assert json.loads(other)["serialNumber"] != json.loads(first)["serialNumber"]


def test_without_git_no_commit_is_named(extra: Path, tmp_path: Path) -> None:
    assert "ffpa:commit" not in properties(extra)
    assert sbom.commit(tmp_path) is None


def test_a_wheel_and_its_sdist_name_the_commit(build: Build, repository: Path, tmp_path: Path) -> None:
    source = repository / "packages/ffpa-extra"
    environment = {"PYTHONPATH": str(repository / "src")}
    wheel = build("ffpa-extra", source=source, **environment)
    assert properties(wheel)["ffpa:commit"] == head(repository)
    sdist = build("ffpa-extra", "sdist", source=source, **environment)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert build("ffpa-extra", source=unpacked, PYTHONPATH="").read_bytes() == wheel.read_bytes()


def test_a_changed_tree_or_one_inside_another_repository_names_no_commit(repository: Path) -> None:
    inside = repository / "src"
    assert sbom.commit(repository) == head(repository)
    assert sbom.commit(inside) is None
    (repository / "VERSION").write_text("9\n")
    assert sbom.commit(repository) is None


def test_an_archive_made_by_git_names_the_commit(repository: Path, tmp_path: Path) -> None:
    """What a packager gets from a forge."""
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for name in (sbom.COMMIT_FILE, ".gitattributes"):
        shutil.copy2(ROOT / name, repository)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "b"], check=True)
    assert sbom.commit(repository) == head(repository)
    archive = tmp_path / "archive.tar"
    subprocess.run([*git, "archive", "--output", str(archive), "HEAD"], check=True)
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    assert sbom.commit(tmp_path / "unpacked") == head(repository)


def test_the_compiler_that_cxx_names_makes_the_launcher(build: Build, core: Path, tmp_path: Path) -> None:
    """As conda's, whose folder has no g++; arguments go with it."""
    found = shutil.which("g++")
    assert found is not None
    compiler = tmp_path / "x86_64-conda-linux-gnu-c++"
    compiler.symlink_to(found)
    wheel = build("ffpa-core", CXX=f"{compiler} -fno-inline")
    assert properties(wheel)["ffpa:host-compiler"].startswith("x86_64-conda-linux-gnu-c++ ")
    assert members(wheel)["ffpa_attn/_launcher.so"] != members(core)["ffpa_attn/_launcher.so"]


def test_a_note_that_is_no_commit_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / sbom.COMMIT_FILE).write_text('"}, "x": "')
    assert sbom.commit(tmp_path) is None
