"""What a wheel would declare as a variant, read by variantlib."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ffpa_build import wheel_variants
from ffpa_build.errors import BuildError
from ffpa_build.spec import load_spec
from small_tree import ROOT, Build

variants_json = pytest.importorskip(
    "variantlib.variants_json", reason="variantlib is not installed: nox -s wheel_variants has it"
)


def test_the_file_beside_a_wheel_is_read_by_variantlib(extra: Path, tmp_path: Path) -> None:
    wheel = Path(shutil.copy2(extra, tmp_path))
    before = wheel.read_bytes()
    assert wheel_variants.main([str(wheel)]) == 0
    assert wheel.read_bytes() == before
    parsed = variants_json.VariantsJson(json.loads((tmp_path / f"{wheel.stem}.variants.json").read_text()))
    (variant,) = parsed.variants.values()
    assert variant.label == "cu12.extra"
    assert {prop.to_str() for prop in variant.properties} == {
        "nvidia :: cuda_version_lower_bound :: 12.0",
        "nvidia :: sm_arch :: 90a_real",
    }
    assert parsed.providers["nvidia"].plugin_api == "nvidia_variant_provider.plugin:NvidiaVariantPlugin"


@pytest.mark.parametrize("toolchain", ["nvrtc-12.9", "nvrtc-13.0"])
@pytest.mark.parametrize("arch", load_spec(ROOT).archs)
def test_each_arch_is_a_property_that_variantlib_reads(extra: Path, tmp_path: Path, arch: str, toolchain: str) -> None:
    manifest = wheel_variants.read_manifest(extra)
    (kernel,) = manifest.kernels
    name = f"native.tiny-{arch}-bf16-d64-s3"
    row = replace(kernel, id=name, arch=arch, file=f"cubins/{name}.cubin", entry=re.sub("[.-]", "_", name))
    version = load_spec(ROOT).toolchains[toolchain].version
    compiler = replace(manifest.compiler, version=version)
    wheel = tmp_path / "ffpa_extra-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "ffpa_pack_extra/manifest.json", replace(manifest, kernels=(row,), compiler=compiler).to_json()
        )
    assert wheel_variants.main([str(wheel)]) == 0
    parsed = variants_json.VariantsJson(json.loads((tmp_path / f"{wheel.stem}.variants.json").read_text()))
    ((label, variant),) = parsed.variants.items()
    number, suffix = re.fullmatch(r"sm_(\d+)([af]?)", arch).groups()
    major = version.split(".")[0]
    assert label == variant.label == f"cu{major}.extra"
    assert {(prop.namespace, prop.feature, prop.value) for prop in variant.properties} == {
        ("nvidia", "sm_arch", f"{number}{suffix}_real"),
        ("nvidia", "cuda_version_lower_bound", f"{major}.0"),
    }


def test_archs_are_in_order_and_emulated_kernels_count_as_what_runs_them(extra: Path) -> None:
    manifest = wheel_variants.read_manifest(extra)
    (kernel,) = manifest.kernels
    kernels = [
        replace(kernel, arch="sm_120f", id="native.tiny-sm_120f-bf16-d64-s3"),
        replace(kernel, arch="sm_80", id="native.tiny-sm_80-bf16-d64-s3"),
        replace(kernel, arch="sm_89", id="native.tiny-sm_89-bf16-d64-s3-for_sm_90a"),
    ]
    found = wheel_variants.properties(replace(manifest, kernels=tuple(kernels)))
    assert found["nvidia"]["sm_arch"] == ["80_real", "90a_real", "120f_real"]


def test_a_wheel_without_kernels_is_refused(build: Build, tmp_path: Path) -> None:
    meta = build("ffpa")
    with pytest.raises(BuildError, match="has 0 kernel packs"):
        wheel_variants.describe(meta)
    assert wheel_variants.main([str(meta)]) == 1
    assert not meta.with_name(f"{meta.stem}.variants.json").exists()


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ffpa_pack_x/manifest.json", '{"schema": 0}')
    with pytest.raises(BuildError, match="ffpa_pack_x/manifest.json"):
        wheel_variants.describe(wheel)
