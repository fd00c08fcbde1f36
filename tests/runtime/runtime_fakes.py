"""Manifest rows, packs and a launcher for tests that need no GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ffpa_attn import Options, Runtime, reference
from ffpa_attn.device import DeviceInfo
from ffpa_attn.explanation import Explanation
from ffpa_attn.layout import result_strides
from ffpa_attn.manifest import PACK_ABI, SCHEMA, Compiler, KernelInfo, Manifest
from ffpa_attn.packs import Pack, PackSet
from ffpa_attn.philox import stream_of
from ffpa_attn.problem import Problem

CUBIN = b"\x7fELF not really a cubin"
ARCH_CAPABILITIES = {
    "sm_80": ("8.0", "8.6", "8.7", "8.9"),
    "sm_89": ("8.9",),
    "sm_90a": ("9.0",),
    "sm_120f": ("12.0", "12.1"),
}
H200 = DeviceInfo(0, "H200", (9, 0), 227 * 1024, 132)
L4 = DeviceInfo(0, "L4", (8, 9), 99 * 1024, 58)
RTX5090 = DeviceInfo(0, "RTX 5090", (12, 0), 99 * 1024, 170)


def kernel(
    arch: str = "sm_90a", *, impl: str = "native.split_d", ext: str = "native", suffix: str = "", **changes: Any
) -> KernelInfo:
    """A row that is right in itself; id, file and entry follow from the other fields."""
    family, name = impl.split(".")
    row = KernelInfo(
        id="",
        family=family,
        impl=name,
        ext=ext,
        recipe="split_d",
        problems=("prefill",),
        arch=arch,
        capabilities=ARCH_CAPABILITIES[arch],
        rank=0,
        dtype="bf16",
        acc="f32",
        head_dim=64,
        stages=3,
        features=(),
        file="",
        sha256=hashlib.sha256(CUBIN).hexdigest(),
        size=len(CUBIN),
        entry="",
        threads=256,
        smem_bytes=64 * 1024,
        tile_m=128,
        tile_n=128,
        cluster=1,
        param_bytes=400,
        box_cols=0,
        box_q_rows=0,
        box_kv_rows=0,
        swizzle=0,
        persistent=False,
        registers=200,
        spill_bytes=0,
    )
    row = replace(row, **changes)
    parts = [impl, row.arch, row.dtype, f"d{row.head_dim}", f"s{row.stages}"]
    parts += ["accf16"] if row.acc == "f16" else []
    identity = "-".join([*parts, *row.features]) + suffix
    entry = identity.replace(".", "_").replace("-", "_")
    return replace(row, id=identity, file=f"cubins/{identity}.cubin", entry=entry)


def manifest(*kernels: KernelInfo, pack: str = "core", version: str = "0.1.0") -> Manifest:
    return Manifest(
        schema=SCHEMA,
        pack=pack,
        distribution=f"ffpa-{pack}",
        version=version,
        pack_abi=PACK_ABI,
        source_digest="0" * 64,
        compiler=Compiler("nvrtc", "12.9.86"),
        flags=(),
        kernels=tuple(sorted(kernels, key=lambda k: k.id)),
    )


def write_pack(root: Path, content: Manifest) -> Path:
    """The files of a pack, with the right cubins."""
    (root / "cubins").mkdir(parents=True)
    (root / "manifest.json").write_text(content.to_json(), encoding="utf-8")
    for row in content.kernels:
        (root / row.file).write_bytes(CUBIN)
    return root


def packs_of(root: Path, *kernels: KernelInfo, pack: str = "core") -> PackSet:
    content = manifest(*kernels, pack=pack)
    return PackSet((Pack(pack, write_pack(root / pack, content), content),))


def memory_packs(*kernels: KernelInfo, pack: str = "core") -> PackSet:
    """Packs for routing, which reads no cubin."""
    return PackSet((Pack(pack, Path("nowhere"), manifest(*kernels, pack=pack)),))


def problem(**changes: Any) -> Problem:
    """A bf16 prefill problem that a d64 kernel serves."""
    facts: dict[str, Any] = {
        "batch": 1,
        "heads": 4,
        "kv_heads": 4,
        "q_len": 1024,
        "kv_len": 1024,
        "head_dim": 64,
        "value_dim": 64,
        "dtype": "bf16",
        "is_causal": False,
        "scale": 0.125,
        "dropout_p": 0.0,
        "mask_kind": "none",
        "mask_alignment": 16,
        "device_type": "cuda",
        "device_index": 0,
        "needs_grad": False,
        "want_lse": False,
    }
    if "head_dim" in changes:
        changes.setdefault("value_dim", changes["head_dim"])
    return Problem(**{**facts, **changes})


class FakeLauncher:
    """Runs the reference where the real one launches a kernel, and records what it was given."""

    def __init__(self) -> None:
        self.prepared: list[tuple[KernelInfo, bytes, Problem]] = []
        self.launched: list[tuple[Tensor, Tensor, Tensor, Tensor | None, tuple[int, ...]]] = []

    def needs_copy(self, tensor: Tensor) -> str | None:
        return None if tensor.stride(-1) == 1 else f"its last dimension has stride {tensor.stride(-1)}"

    def prepare(
        self,
        kernel: KernelInfo,
        image: Callable[[], bytes],
        problem: Problem,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        want_lse: bool,
    ) -> Any:
        self.prepared.append((kernel, image(), problem))
        # as the launcher's CheckMask
        own = query.dtype
        fits = {"none": None, "boolean": torch.bool, "additive": own, "additive_f32": torch.float32}
        assert (None if attn_mask is None else attn_mask.dtype) == fits[problem.mask_kind]
        assert ("bias32" in kernel.features) == (problem.mask_kind == "additive_f32")
        expected = [(t.shape, t.stride(), t.dtype) for t in (query, key, value)]

        def launch(
            query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, philox: tuple[Any, ...] = ()
        ) -> Any:
            if [(t.shape, t.stride(), t.dtype) for t in (query, key, value)] != expected:
                return None
            assert (None if attn_mask is None else attn_mask.dtype) == fits[problem.mask_kind]
            self.launched.append((query, key, value, attn_mask, philox))
            out, lse = reference.attention(
                query,
                key,
                value,
                attn_mask,
                is_causal=problem.is_causal,
                scale=problem.scale,
                dropout_p=problem.dropout_p,
                philox=stream_of(torch.stack(philox[:2])) if philox else None,
            )
            result = torch.empty_strided(out.shape, result_strides(out.shape, query.stride()), dtype=out.dtype)
            result.copy_(out)
            return (result, lse) if want_lse else result

        return launch


def attend(runtime: Runtime, query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
    """A call on `runtime`, with its options as keywords."""
    return runtime.attention(query, key, value, attn_mask, Options(**options))


def explain(runtime: Runtime, query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Explanation:
    """The route of the same call."""
    return runtime.explain(query, key, value, attn_mask, Options(**options))


def as_json(content: Manifest) -> dict[str, Any]:
    return asdict(content)
