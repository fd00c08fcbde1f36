"""The pack table, packages/ and the metadata of the distributions."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from ffpa_build import distributions
from ffpa_build.spec import load_spec
from small_tree import ROOT, Build, metadata, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def requirements(wheel: Path) -> list[Requirement]:
    return [Requirement(line.partition(": ")[2]) for line in metadata(wheel) if line.startswith("Requires-Dist: ")]


def brought_by(wheel: Path, extra: str) -> set[str]:
    return {r.name for r in requirements(wheel) if r.marker is not None and r.marker.evaluate({"extra": extra})}


@pytest.fixture
def meta(build: Build) -> Path:
    """The real meta distribution's wheel."""
    return build("ffpa", source=ROOT / "packages/ffpa", PYTHONPATH=str(ROOT / "src"))


def test_packages_match_the_pack_table() -> None:
    assert distributions.differences(load_spec(ROOT)) == []


def test_an_edited_missing_or_unknown_distribution_is_reported(small_tree: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(small_tree, tree, ignore=shutil.ignore_patterns("__pycache__"))
    with (tree / "packages/ffpa-core/pyproject.toml").open("a") as file:
        file.write("# by hand\n")
    (tree / "packages/ffpa-sm120/README.md").unlink()
    shutil.copytree(tree / "packages/ffpa-extra", tree / "packages/ffpa-stray")
    assert distributions.differences(load_spec(tree)) == [
        "packages/ffpa-core/pyproject.toml: differs from the tables",
        "packages/ffpa-sm120/README.md: missing",
        "packages/ffpa-stray: no row of variants/packs.toml has this distribution",
    ]
    assert distributions.main(["check", "--tree", str(tree)]) == 1
    shutil.rmtree(tree / "packages/ffpa-stray")
    assert distributions.main(["write", "--tree", str(tree)]) == 0


def test_a_title_cannot_break_out_of_the_generated_file() -> None:
    spec = load_spec(ROOT)
    core = dataclasses.replace(spec.packs["core"], title='x"\n[project.scripts]\ny = "z')
    with pytest.raises(ValueError, match="cannot stand here"):
        distributions.render(dataclasses.replace(spec, packs={**spec.packs, "core": core}))


def test_every_pack_and_every_arch_is_an_extra(meta: Path) -> None:
    spec = load_spec(ROOT)
    provided = {line.partition(": ")[2] for line in metadata(meta) if line.startswith("Provides-Extra: ")}
    assert provided == {*spec.packs, *(f"sm{arch.sm}" for arch in spec.archs.values()), "all"}
    for pack in spec.packs.values():
        assert brought_by(meta, pack.name) == {pack.distribution}
    for arch in spec.archs.values():
        (distribution,) = brought_by(meta, f"sm{arch.sm}")
        assert arch.name in next(p.archs for p in spec.packs.values() if p.distribution == distribution)
    assert brought_by(meta, "all") == {pack.distribution for pack in spec.packs.values()}


def test_an_arch_brings_its_first_pack_and_not_every_family(small_tree: Path) -> None:
    extras = distributions.extras(load_spec(small_tree))
    assert extras["sm90"] == ["ffpa-core"]
    assert extras["extra"] == ["ffpa-extra"]


def test_pins_are_exact_and_accept_a_restricted_build(meta: Path) -> None:
    version = (ROOT / "VERSION").read_text().strip()
    found = requirements(meta)
    assert any(r.name == "ffpa-core" and r.marker is None for r in found)
    for requirement in found:
        assert Version(version) in requirement.specifier
        assert Version(f"{version}+sm89") in requirement.specifier
        assert Version("99") not in requirement.specifier


def test_the_version_stands_in_one_place() -> None:
    version = re.escape((ROOT / "VERSION").read_text().strip())
    stated = re.compile(rf"(?i)^\W*(__)?version(__)?\W*[:=]\W*{version}", re.MULTILINE)
    files = [p for folder in ("src", "packages", "ci", "docs") for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [ROOT / "pyproject.toml", ROOT / "noxfile.py"]
    text = {path: path.read_bytes().decode("utf-8", "replace") for path in files if path.suffix != ".pyc"}
    assert [str(path) for path, content in text.items() if stated.search(content)] == []


def test_a_changed_version_file_changes_every_distribution(small_tree: Path, build: Build, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(small_tree, tree, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "VERSION").write_text("7.8.9\n")
    for distribution in ("ffpa", "ffpa-extra"):
        wheel = build(distribution, source=tree / "packages" / distribution, PYTHONPATH=str(tree / "src"))
        assert Version(wheel.name.split("-")[1]).public == "7.8.9"
        assert any(r.name == "ffpa-core" and "7.8.9" in str(r.specifier) for r in requirements(wheel))


def test_all_distributions_use_one_backend() -> None:
    hatchling = next(
        line
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["build"]
        if line.startswith("hatchling")
    )
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        system = tomllib.loads(path.read_text())["build-system"]
        assert system["build-backend"] == "hatchling.build"
        assert hatchling in system["requires"], path


def test_the_build_needs_no_torch() -> None:
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        names = {Requirement(line).name for line in tomllib.loads(path.read_text())["build-system"]["requires"]}
        assert "torch" not in names, path


def test_check_command_is_clean_on_the_tree() -> None:
    run(ROOT, sys.executable, "-m", "ffpa_build.distributions", "check")
