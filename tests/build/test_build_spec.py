"""The tables below variants/ are checked when they are read; errors name file, table, key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_tree import REPOSITORY

from ffpa_build.errors import SelectionError, SpecError
from ffpa_build.matrix import expand
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / "variants" / f"{name}.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("table", "old", "new", "parts"),
    [
        ("archs", 'title = "Ada"', 'titel = "Ada"', ["archs.toml", "sm_89", "title", "required"]),
        ("archs", 'title = "Ada"', 'title = "Ada"\ncolour = "red"', ["sm_89", "colour", "unknown key", "min_cuda"]),
        ("archs", "smem_block_kib = 99", 'smem_block_kib = "99"', ["sm_89", "smem_block_kib", "integer"]),
        ("archs", "smem_block_kib = 99", "smem_block_kib = true", ["sm_89", "smem_block_kib", "integer"]),
        ("archs", '"90", "hopper"]', '"90", "ada"]', ["sm_90a", "aliases", "ada", "sm_89"]),
        ("archs", "[sm_89]", "[sm89]", ["archs.toml", "sm89", "sm_<number>"]),
        ("archs", 'capabilities = ["8.9"]', "capabilities = []", ["sm_89", "capabilities", "empty"]),
        ("families", 'requires = ["cp_async"]', 'requires = ["tma"]', ["tiny.copy", "requires", "sm_89", "cp_async"]),
        ("families", 'requires = ["cp_async"]', 'requires = ["x"]', ["tiny.copy", "requires", "x", "cp_async, tma"]),
        ("families", '"sm_90a"]', '"sm_70"]', ["tiny.copy", "archs", "sm_70", "sm_89, sm_90a"]),
        ("families", 'dtypes = ["bf16", "fp16"]', 'dtypes = ["fp32"]', ["dtypes", "fp32", "bf16, fp16"]),
        ("families", "multiple = 8", "multiple = 12", ["head_dim", "multiple", "12"]),
        ("families", "max = 1024", "max = 2048", ["head_dim", "1024"]),
        ("families", '"bias", "bias32"]\nspills', '"bias", "alibi"]\nspills', ["exclusive", "alibi", "dropout"]),
        ("families", 'header = "', 'header = "../', ["header", "below csrc/"]),
        ("families", "spills = []", 'needs = ["copy"]\nspills = []', ["tiny.copy", "needs", "copy", "merge", "none"]),
        ("families", "spills = []", "spills = [{ bytes = 8 }]", ["tiny.copy.spills[0]", "reason", "required"]),
        ("families", "stages = [2, 3]", "stages = [2, 2]", ["stages", "twice"]),
        (
            "packs",
            'families = ["tiny"]\narchs = ["sm_90a"]',
            'families = ["tiny"]\narchs = ["sm_89"]',
            ["sm_89", "core"],
        ),
        ("packs", '"ffpa-extra"', '"ffpa-core"', ["extra", "distribution", "ffpa-core", "core"]),
        ("packs", 'families = ["tiny"]\narchs = ["sm_89"]', 'families = ["big"]\narchs = ["sm_89"]', ["big", "tiny"]),
        ("presets", "head_dims = [64]", "head_dims = [60]", ["presets.toml", "head_dims", "60", "multiples of 8"]),
        ("presets", "head_dims = [64]", 'head_dims = "most"', ["head_dims", "most", "default, all"]),
        ("presets", 'emulate = ["sm_89"]', 'emulate = ["sm_90a"]', ["emulated", "emulate", "sm_90a", "itself"]),
        ("presets", 'ext = "all"', 'ext = ["cute"]', ["ext", "cute", "native"]),
        ("presets", "stages = [2]", "stages = [7]", ["stages", "7", "2, 3"]),
        ("archs", "[sm_89]", "[sm_89", ["archs.toml", "not valid TOML"]),
    ],
)
def test_wrong_table_is_named(tree: Path, table: str, old: str, new: str, parts: list[str]) -> None:
    edit(tree, table, old, new)
    with pytest.raises(SpecError) as caught:
        load_spec(tree)
    for part in parts:
        assert part in str(caught.value)


def test_arch_without_a_pack_is_rejected(tree: Path) -> None:
    edit(tree, "packs", '[extra]\ndistribution = "ffpa-extra"', '[extra]\ndistribution = "ffpa-other"')
    text = (tree / "variants/packs.toml").read_text()
    (tree / "variants/packs.toml").write_text(text[: text.index("[extra]")])
    with pytest.raises(SpecError, match="no pack lists family 'tiny' with arch 'sm_90a'"):
        load_spec(tree)


def test_toolchains_need_exactly_one_default(tree: Path) -> None:
    path = tree / "variants/toolchains/nvrtc-12.9.toml"
    path.write_text(path.read_text().replace("default = true", "default = false"))
    with pytest.raises(SpecError, match="exactly one"):
        load_spec(tree)


def test_unpinned_toolchain_is_rejected(tree: Path) -> None:
    path = tree / "variants/toolchains/nvrtc-12.9.toml"
    path.write_text(path.read_text().replace("cuda-bindings==12.9.10", "cuda-bindings>=12.9"))
    with pytest.raises(SpecError, match=r"nvrtc-12.9.toml.*name==version"):
        load_spec(tree)


def test_adding_an_arch_is_an_edit_of_tables(tree: Path) -> None:
    archs = tree / "variants/archs.toml"
    archs.write_text(
        archs.read_text()
        + '\n[sm_120f]\ntitle = "x"\ncapabilities = ["12.0"]\nmin_cuda = "12.9"\nsmem_block_kib = 99\n'
        + 'features = ["cp_async"]\nauto = ["native"]\naliases = ["120f"]\n'
    )
    edit(tree, "families", '"sm_90a"]', '"sm_90a", "sm_120f"]')
    edit(tree, "packs", 'archs = ["sm_90a"]', 'archs = ["sm_90a", "sm_120f"]')
    spec = load_spec(tree)
    variants = expand(spec, Selection.make(spec, archs="120f")).variants
    assert [variant.id for variant in variants] == ["tiny.copy-sm_120f-bf16-d64-s2"]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("sm80", "sm_80"),
        ("ada", "sm_89"),
        ("90", "sm_90a"),
        ("hopper", "sm_90a"),
        ("Hopper", "sm_90a"),
        ("blackwell", "sm_100f"),
        ("blackwell_geforce", "sm_120f"),
        ("120f", "sm_120f"),
    ],
)
def test_project_tables_load_and_resolve_aliases(alias: str, name: str) -> None:
    spec = load_spec(REPOSITORY)
    assert Selection.make(spec, archs=alias).archs == (name,)


def test_every_capability_names_an_arch_that_serves_it() -> None:
    """What an error tells the user to build for is the capability of the device, 8.6 as `--arch 86`."""
    spec = load_spec(REPOSITORY)
    for arch in spec.archs.values():
        for capability in arch.capabilities:
            for name in (capability, capability.replace(".", ""), "sm_" + capability.replace(".", "")):
                assert capability in spec.arch(name).capabilities


def test_every_preset_of_the_project_yields_variants_with_unique_ids() -> None:
    spec = load_spec(REPOSITORY)
    for preset in spec.presets:
        ids = [variant.id for variant in expand(spec, Selection.make(spec, preset)).variants]
        assert ids
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"archs": "sm_70"}, ["arch", "sm_70", "sm_89 (sm89, 89, ada)"]),
        ({"archs": ""}, ["arch", "empty"]),
        ({"ext": "cute"}, ["ext", "cute", "native"]),
        ({"head_dims": "60"}, ["headdim", "60", "multiples of 8 in 8..1024"]),
        ({"head_dims": "1032"}, ["headdim", "1032"]),
        ({"head_dims": "big"}, ["headdim", "big", "default, all"]),
        ({"stages": "9"}, ["stages", "9", "2, 3, all"]),
        ({"dtypes": "fp32"}, ["dtype", "fp32", "bf16, fp16, all"]),
        ({"features": "alibi"}, ["features", "alibi", "bias, bias32, dropout, all, none"]),
        ({"packs": "other"}, ["pack", "other", "core, extra, all"]),
        ({"preset": "other"}, ["preset", "other", "default, emulated"]),
        ({"preset": "emulated", "archs": "sm_89"}, ["arch", "sm_89", "emulates"]),
    ],
)
def test_wrong_selection_is_named(tree: Path, options: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(SelectionError) as caught:
        Selection.make(load_spec(tree), **options)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


def test_empty_selection_says_why(tree: Path) -> None:
    spec = load_spec(tree)
    with pytest.raises(SelectionError, match=r"empty.*pack core is not selected"):
        expand(spec, Selection.make(spec, archs="sm89", packs="extra"))
    with pytest.raises(SelectionError, match=r"empty.*bf16 always accumulates in f32"):
        expand(spec, Selection.make(spec, acc="f16"))


def test_toolchain_without_hashes_is_rejected(tree: Path) -> None:
    path = tree / "variants/toolchains/nvcc-13.0.toml"
    path.write_text(path.read_text().replace('"nvidia-nvvm==13.0.88" = [', '"nvidia-nvvm==13.0.87" = ['))
    with pytest.raises(SpecError, match=r"nvcc-13.0.toml: \[hashes\] nvidia-nvvm==13.0.88: this key is required"):
        load_spec(tree)
