"""A manifest survives a round trip and nothing malformed gets through."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
from build_tree import REPOSITORY

from ffpa_attn.manifest import PACK_ABI, KernelInfo, Manifest, ManifestError
from ffpa_build.facts import META_SCHEMA

KERNEL: dict[str, Any] = {
    "id": "native.split_d-sm_89-bf16-d512-s3-bias",
    "family": "native",
    "impl": "split_d",
    "ext": "native",
    "recipe": "split_d",
    "problems": ["prefill"],
    "arch": "sm_89",
    "capabilities": ["8.9"],
    "rank": 0,
    "dtype": "bf16",
    "acc": "f32",
    "head_dim": 512,
    "stages": 3,
    "features": ["bias"],
    "file": "cubins/native.split_d-sm_89-bf16-d512-s3-bias.cubin",
    "sha256": "0" * 64,
    "size": 10,
    "entry": "native_split_d_sm_89_bf16_d512_s3_bias",
    "threads": 256,
    "smem_bytes": 1024,
    "tile_m": 64,
    "tile_n": 64,
    "cluster": 1,
    "param_bytes": 300,
    "box_cols": 0,
    "box_q_rows": 0,
    "box_kv_rows": 0,
    "swizzle": 0,
    "persistent": False,
    "registers": 255,
    "spill_bytes": 0,
}


def manifest() -> dict[str, Any]:
    return {
        "schema": 1,
        "pack": "core",
        "distribution": "ffpa-core",
        "version": "0.1.0+sm89",
        "pack_abi": PACK_ABI,
        "source_digest": "f" * 64,
        "compiler": {"name": "nvrtc", "version": "12.9.86"},
        "flags": ["-std=c++17"],
        "kernels": [dict(KERNEL)],
    }


def test_round_trip_is_exact_and_deterministic() -> None:
    parsed = Manifest.from_json(json.dumps(manifest()))
    assert json.loads(parsed.to_json()) == manifest()
    assert Manifest.from_json(parsed.to_json()) == parsed
    assert Manifest.from_json(parsed.to_json()).to_json() == parsed.to_json()


def change(path: str, value: Any) -> dict[str, Any]:
    data = manifest()
    target: Any = data
    *parents, last = path.split(".")
    for key in parents:
        target = target[int(key)] if key.isdigit() else target[key]
    target[int(last) if last.isdigit() else last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 2),
        ("schema", True),
        ("pack_abi", PACK_ABI + 1),
        ("pack_abi", "1"),
        ("extra", 1),
        ("pack", "../core"),
        ("version", "newest"),
        ("source_digest", "F" * 64),
        ("compiler", "nvrtc"),
        ("compiler.extra", 1),
        ("flags", "-std=c++17"),
        ("flags", [1]),
        ("kernels", []),
        ("kernels", {}),
        ("kernels.0", 3),
        ("kernels.0.extra", 1),
        ("kernels.0.file", "../cubins/x.cubin"),
        ("kernels.0.file", "/cubins/native.split_d-sm_89-bf16-d512-s3-bias.cubin"),
        ("kernels.0.file", "cubins/other.cubin"),
        ("kernels.0.id", "native.split_d/../../x-sm_89"),
        ("kernels.0.sha256", "0" * 63),
        ("kernels.0.sha256", "g" * 64),
        ("kernels.0.size", -1),
        ("kernels.0.size", 10.0),
        ("kernels.0.threads", 2048),
        ("kernels.0.threads", True),
        ("kernels.0.persistent", 0),
        ("kernels.0.head_dim", 0),
        ("kernels.0.dtype", "fp32"),
        ("kernels.0.problems", []),
        ("kernels.0.problems", ["backward"]),
        ("kernels.0.features", ["bias", "bias"]),
        ("kernels.0.capabilities", ["8"]),
        ("kernels.0.swizzle", 16),
        ("kernels.0.swizzle", False),
        ("kernels.0.swizzle", 0.0),
        ("kernels.0.entry", "main"),
        ("kernels.0.arch", "sm_89 "),
        ("kernels.0.order", -1),
        ("kernels.0.order", None),
        ("kernels.0.row_cost", -1),
        ("kernels.0.row_cost", 1.5),
    ],
)
def test_malformed_field_is_rejected_by_name(path: str, value: Any) -> None:
    with pytest.raises(
        ManifestError, match=re.escape(path.rsplit(".", 1)[-1] if path != "kernels.0" else "kernels[0]")
    ):
        Manifest.from_json(json.dumps(change(path, value)))


@pytest.mark.parametrize("field", [field.name for field in fields(Manifest) if field.name != "debug"])
def test_missing_top_level_key_is_rejected(field: str) -> None:
    data = manifest()
    del data[field]
    with pytest.raises(ManifestError, match=field):
        Manifest.from_json(json.dumps(data))


@pytest.mark.parametrize(("key", "usual"), [("order", 0), ("row_cost", 0)])
def test_what_is_usual_does_not_stand_in_the_file(key: str, usual: int) -> None:
    data = manifest()
    data["kernels"][0][key] = 2
    assert getattr(Manifest.from_json(json.dumps(data)).kernels[0], key) == 2
    assert json.loads(Manifest.from_json(json.dumps(data)).to_json()) == data
    assert Manifest.from_json(json.dumps(change(f"kernels.0.{key}", usual))).to_json() == (
        Manifest.from_json(json.dumps(manifest())).to_json()
    )


@pytest.mark.parametrize(
    "field", [field.name for field in fields(KernelInfo) if field.name not in ("order", "row_cost")]
)
def test_missing_kernel_key_is_rejected(field: str) -> None:
    data = manifest()
    del data["kernels"][0][field]
    with pytest.raises(ManifestError, match=field):
        Manifest.from_json(json.dumps(data))


def test_duplicate_kernel_is_rejected() -> None:
    with pytest.raises(ManifestError, match="stands twice"):
        Manifest.from_json(json.dumps({**manifest(), "kernels": [KERNEL, KERNEL]}))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": 1, "schema": 1}', '{"schema": NaN}', "[" * 100000, b"\xff\xfe\x00"]
)
def test_not_a_manifest_is_rejected(text: str | bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(text)


def test_abi_numbers_are_those_of_the_headers() -> None:
    params = (REPOSITORY / "csrc/abi/attention_params.h").read_text()
    meta = (REPOSITORY / "csrc/abi/kernel_meta.h").read_text()
    assert re.findall(r"kPackAbi = (\d+);", params) == [str(PACK_ABI)]
    assert re.findall(r"kMetaSchema = (\d+);", meta) == [str(META_SCHEMA)]


def test_manifest_module_needs_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import ffpa_attn.manifest; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'ffpa_attn'}))"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
