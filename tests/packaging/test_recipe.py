"""The conda recipe: made from the tables, accepted and rendered by rattler-build without a network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ffpa_build import generated, recipe
from ffpa_build.spec import load_spec
from small_tree import ROOT

rattler_build = pytest.importorskip("rattler_build", reason="py-rattler-build is not installed: nox -s recipe has it")

PLATFORMS = ("linux-64", "linux-aarch64")


def config(platform: str) -> Any:
    there = rattler_build.PlatformConfig(target_platform=platform, build_platform=platform, host_platform=platform)
    return rattler_build.RenderConfig(platform=there)


def rendered(platform: str, folder: Path = ROOT / "recipe") -> list[Any]:
    variants = rattler_build.VariantConfig.from_file(folder / "variants.yaml")
    return rattler_build.Stage0Recipe.from_file(folder / "recipe.yaml").render(variants, config(platform))


def pins(output: Any) -> set[str]:
    return {
        line["pin_subpackage"]["name"] for line in output.recipe.requirements.to_dict()["run"] if isinstance(line, dict)
    }


def test_the_files_match_the_tables() -> None:
    assert generated.differences(load_spec(ROOT), recipe.render) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_pack_is_an_output_for_every_nvcc(platform: str) -> None:
    spec = load_spec(ROOT)
    packs = {pack.distribution for pack in spec.packs.values()}
    nvcc = {"12.9": "12.9.86", "13.0": "13.0.88"}
    found: dict[str, dict[str, Any]] = {release: {} for release in nvcc}
    for output in rendered(platform):
        if output.recipe.package.name != "ffpa":
            found[output.variant["cuda_compiler_version"]][output.recipe.package.name] = output
    for release, outputs in found.items():
        assert outputs.keys() == packs
        for output in outputs.values():
            needs = output.recipe.requirements.to_dict()
            assert f"cuda-nvcc-tools =={nvcc[release]}" in needs["build"]
            assert f"cuda-nvcc_{platform} {release}.*" in needs["build"]
            assert needs["run_constraints"] == [f"__cuda >={release.split('.')[0]}"]
            assert output.variant["ffpa_toolchain"] == f"nvcc-{release}"
            assert output.recipe.build.string.startswith(f"cuda{release.replace('.', '')}_")


def test_no_two_outputs_have_one_file_name() -> None:
    names = {(output.recipe.package.name, output.recipe.build.string) for output in rendered("linux-64")}
    assert len(names) == len(load_spec(ROOT).packs) * 2 + 1


def test_packs_run_on_the_core_of_their_version_and_the_meta_package_brings_all() -> None:
    spec = load_spec(ROOT)
    for output in rendered("linux-64"):
        expected = (
            {"ffpa-core"} if output.recipe.package.name != "ffpa" else {p.distribution for p in spec.packs.values()}
        )
        assert pins(output) == expected - {output.recipe.package.name}
        assert str(output.recipe.package.version) == spec.version


def test_the_build_requirements_are_those_of_the_wheels() -> None:
    (core,) = (
        o for o in rendered("linux-64") if (o.recipe.package.name, o.variant.get("ffpa_driver")) == ("ffpa-core", "12")
    )
    needs = core.recipe.requirements.to_dict()
    assert {"hatchling >=1.28", "pyelftools >=0.31"} <= set(needs["host"])
    assert any(line.startswith("apache-tvm-ffi >=") for line in needs["host"])
    assert not any("pytorch" in line for line in needs["host"])
    assert {"pytorch >=2.6", "packaging >=23.2"} <= set(needs["run"])


def test_it_is_for_linux_only() -> None:
    assert rendered("win-64") == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("noarch: python", "noarch: pithon"),
        ("run_constraints:", "run_constrains:"),
        ("hatchling >=1.28", "hatchling >=1.28,>"),
        ("ffpa_toolchain }}", "ffpa_toolchian }}"),
    ],
)
def test_a_mistake_in_the_recipe_is_caught(tmp_path: Path, right: str, wrong: str) -> None:
    shutil.copytree(ROOT / "recipe", tmp_path / "recipe")
    file = tmp_path / "recipe/recipe.yaml"
    text = file.read_text()
    assert right in text
    file.write_text(text.replace(right, wrong))
    with pytest.raises(rattler_build.RattlerBuildError):
        rendered("linux-64", tmp_path / "recipe")


def test_the_meta_package_builds_from_an_empty_channel(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    shutil.copytree(ROOT / "recipe", tree / "recipe")
    shutil.copy2(ROOT / "LICENSE", tree)
    channel = tmp_path / "channel"
    for platform in ("noarch", "linux-64"):
        (channel / platform).mkdir(parents=True)
        (channel / platform / "repodata.json").write_text('{"info": {}, "packages": {}, "packages.conda": {}}')
    meta = next(output for output in rendered("linux-64", tree / "recipe") if output.recipe.package.name == "ffpa")
    result = meta.run_build(
        tool_config=rattler_build.ToolConfiguration(test_strategy="skip"),
        output_dir=tmp_path / "out",
        channels=[channel.as_uri()],
    )
    package = rattler_build.Package.from_file(result.packages[0])
    version = load_spec(ROOT).version
    assert {line.split()[0] for line in package.depends} == {p.distribution for p in load_spec(ROOT).packs.values()}
    assert all(f">={version}," in line for line in package.depends)
