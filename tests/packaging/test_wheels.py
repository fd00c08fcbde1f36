"""What is in the wheels and sdists: built from a small tree, with real compiles of a tiny kernel."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from small_tree import ONE_KERNEL, Build, members, metadata, run


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def test_a_data_pack_is_for_any_platform_and_holds_only_cubins_and_a_manifest(extra: Path) -> None:
    assert extra.name.endswith("-py3-none-any.whl")
    payload = {name for name in members(extra) if ".dist-info/" not in name}
    cubins = {name for name in payload if name.startswith("ffpa_pack_extra/cubins/") and name.endswith(".cubin")}
    assert len(cubins) == 1
    assert payload - cubins == {"ffpa_pack_extra/__init__.py", "ffpa_pack_extra/manifest.json"}
    assert members(extra)["ffpa_pack_extra/__init__.py"] == b""


def test_the_manifest_agrees_with_the_wheel(extra: Path) -> None:
    files = members(extra)
    manifest = json.loads(files["ffpa_pack_extra/manifest.json"])
    assert manifest["distribution"] == "ffpa-extra"
    assert f"Version: {manifest['version']}" in metadata(extra)
    for row in manifest["kernels"]:
        cubin = files[f"ffpa_pack_extra/{row['file']}"]
        assert row["sha256"] == hashlib.sha256(cubin).hexdigest()
        assert row["size"] == len(cubin)


def test_the_core_wheel_is_for_one_platform_and_carries_runtime_launcher_and_kernels(core: Path) -> None:
    assert core.name.split("-")[2:4] == ["py3", "none"]
    assert not core.name.endswith("-any.whl")
    files = members(core)
    assert {"ffpa_attn/__init__.py", "ffpa_attn/_launcher.so", "ffpa_pack_core/manifest.json"} <= files.keys()
    assert not any(name.startswith(("ffpa_build/", "src/")) or "__pycache__" in name for name in files)


def test_packs_are_announced_by_entry_points(core: Path, extra: Path) -> None:
    for wheel, line in ((core, b"core = ffpa_pack_core"), (extra, b"extra = ffpa_pack_extra")):
        (text,) = (data for name, data in members(wheel).items() if name.endswith("/entry_points.txt"))
        assert text.splitlines() == [b"[ffpa.kernel_packs]", line]


def test_a_restricted_build_bears_a_label(core: Path) -> None:
    version = core.name.split("-")[1]
    assert version.partition("+")[2].startswith("sm90a"), version


@pytest.mark.parametrize("distribution", ["ffpa", "ffpa-extra"])
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_building_twice_gives_the_same_bytes(build: Build, tmp_path: Path, distribution: str, kind: str) -> None:
    first = build(distribution, kind, FFPA_BUILD_CACHE=str(tmp_path / "a"))
    second = build(distribution, kind, FFPA_BUILD_CACHE=str(tmp_path / "b"))
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("distribution", ["ffpa", "ffpa-core", "ffpa-extra"])
def test_the_wheel_from_the_sdist_equals_the_wheel_from_the_tree(
    build: Build, request: pytest.FixtureRequest, tmp_path: Path, distribution: str
) -> None:
    fixture = {"ffpa-core": "core", "ffpa-extra": "extra"}.get(distribution)
    from_tree = build(distribution) if fixture is None else request.getfixturevalue(fixture)
    unpacked = unpack(build(distribution, "sdist"), tmp_path)
    # A cache of its own, so that this compares a second compile too, from another folder.
    again = build(distribution, source=unpacked, PYTHONPATH="", FFPA_BUILD_CACHE=str(tmp_path / "cache"))
    assert again.name == from_tree.name
    assert again.read_bytes() == from_tree.read_bytes()


def test_a_selection_that_would_change_an_sdists_version_is_refused(build: Build, tmp_path: Path) -> None:
    plain = dict.fromkeys(ONE_KERNEL, "")
    unpacked = unpack(build("ffpa-core", "sdist", **plain), tmp_path)
    with pytest.raises(AssertionError, match="restrict the build when the sdist is made"):
        build("ffpa-core", source=unpacked, PYTHONPATH="")


def test_a_pack_without_a_kernel_of_the_selection_is_an_error(build: Build) -> None:
    with pytest.raises(AssertionError, match="the selection is empty"):
        build("ffpa-sm120")


def test_a_misspelt_variable_is_an_error(build: Build) -> None:
    with pytest.raises(AssertionError, match="FFPA_BUILD_STAGE: .*did you mean FFPA_BUILD_STAGES"):
        build("ffpa-extra", FFPA_BUILD_STAGE="3")


def test_an_editable_install_uses_the_sources_and_carries_the_kernels(build: Build, small_tree: Path) -> None:
    wheel = build("ffpa-core", "wheel:editable")
    files = members(wheel)
    (link,) = (data for name, data in files.items() if name.endswith(".pth"))
    assert Path(link.decode().strip()).resolve() == (small_tree / "src").resolve()
    assert "ffpa_pack_core/manifest.json" in files
    assert not any(name.startswith("ffpa_attn/") for name in files)
    assert (small_tree / "src/ffpa_attn/_launcher.so").is_file()


def test_a_second_pack_installed_beside_core_is_found(core: Path, extra: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(core), str(extra)], check=True)
    script = (
        "import json, ffpa_attn\n"
        "from ffpa_attn import packs\n"
        "found = packs.discover().verified()\n"
        "accepted = {pack.name: [kernel.id for kernel in pack.kernels] for pack in found.packs}\n"
        "print(json.dumps([ffpa_attn.__file__, accepted, [pack.reason for pack in found.rejected]]))\n"
    )
    text = run(site, sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(site))
    file, accepted, rejected = json.loads(text)
    assert Path(file).is_relative_to(site)
    assert accepted == {"core": ["native.tiny-sm_90a-bf16-d64-s3"], "extra": ["extra.tiny-sm_90a-bf16-d64-s3"]}
    assert rejected == []
