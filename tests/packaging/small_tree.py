"""The parts of a small source tree whose families compile in a moment, and helpers to build and read wheels."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Build = Callable[..., Path]

FAMILIES = """
[native]
title = "a family for the tests"

[native.tiny]
title = "stores nothing of interest"
ext = "native"
header = "kernels/tiny/tiny.cuh"
kernel = "ffpa::tiny::Tiny"
recipe = "split_d"
problems = ["prefill"]
archs = ["sm_80", "sm_89", "sm_90a", "sm_100f", "sm_120f"]
requires = []
dtypes = ["bf16", "fp16"]
acc = ["f32"]
head_dim = { min = 8, max = 1024, multiple = 8 }
stages = [2, 3, 4]
features = []

[extra]
title = "the family of a second pack"

[extra.tiny]
title = "the same kernel under another name"
ext = "native"
header = "kernels/tiny/tiny.cuh"
kernel = "ffpa::tiny::Tiny"
recipe = "split_d"
problems = ["prefill"]
archs = ["sm_90a"]
requires = []
dtypes = ["bf16"]
acc = ["f32"]
head_dim = { min = 8, max = 1024, multiple = 8 }
stages = [2, 3, 4]
features = []
"""

PACKS = """
[core]
distribution = "ffpa-core"
package = "ffpa_pack_core"
title = "the runtime and the family of the tests"
families = ["native"]
archs = ["sm_80", "sm_89", "sm_90a", "sm_100f"]

[sm120]
distribution = "ffpa-sm120"
package = "ffpa_pack_sm120"
title = "the family of the tests for one more arch"
families = ["native"]
archs = ["sm_120f"]

[extra]
distribution = "ffpa-extra"
package = "ffpa_pack_extra"
title = "a further pack, of another family"
families = ["extra"]
archs = ["sm_90a"]
"""

PRESETS = """
[head_dims]
default = [64, 128]
all = [64, 128, 192]

[preset.default]
title = "all that the tests know"
archs = ["sm_80", "sm_89", "sm_90a", "sm_100f", "sm_120f"]
ext = "all"
head_dims = "default"
dtypes = ["bf16"]
acc = ["f32"]
stages = [2, 3]
features = []
"""

KERNEL = """\
#pragma once

#include "abi/attention_params.h"
#include "core/variant.cuh"

namespace ffpa::tiny {

template <class V>
struct Tiny {
  using Params = abi::AttentionParams;
  static constexpr unsigned int kThreads = 32, kMinBlocks = 1, kSmemBytes = 1024, kTileM = 64, kTileN = 64;
  static constexpr unsigned int kCluster = 1, kBoxCols = 0, kBoxQRows = 0, kBoxKvRows = 0, kSwizzle = 0;
  static constexpr unsigned int kPersistent = 0;

  static __device__ void run(const Params& params) {
    if (params.lse != nullptr && threadIdx.x == 0) params.lse[blockIdx.x] = V::kHeadDim;
  }
};

}  // namespace ffpa::tiny
"""

ONE_KERNEL = {
    "FFPA_BUILD_ARCH": "sm_90a",
    "FFPA_DEV_HEADDIMS": "64",
    "FFPA_BUILD_STAGES": "3",
    "FFPA_BUILD_DTYPES": "bf16",
    "FFPA_BUILD_JOBS": "1",
}
"""One kernel a pack."""


def run(tree: Path, *command: str, cwd: Path | None = None, **environment: str) -> str:
    """Run a command with the tree's src/ importable; its stdout. Fails the test with all output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FFPA_", "ENABLE_FFPA_"))}
    inherited.pop("SOURCE_DATE_EPOCH", None)
    result = subprocess.run(
        command,
        cwd=cwd or tree,
        env={**inherited, "PYTHONPATH": str(tree / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> list[str]:
    """The lines of METADATA's header."""
    (name,) = (name for name in members(wheel) if name.endswith(".dist-info/METADATA"))
    return members(wheel)[name].decode().split("\n\n")[0].splitlines()


def rewrite(wheel: Path, target: Path, changes: dict[str, bytes | None], record: bool = True) -> None:
    """A copy with members replaced, added or (None) left out; with `record` its RECORD fits that."""
    files = {name: data for name, data in {**members(wheel), **changes}.items() if data is not None}
    if record:
        (name,) = (name for name in files if name.endswith(".dist-info/RECORD"))
        files[name] = "".join(f"{row}\n" for row in [*map(record_row, *zip(*files.items(), strict=True))]).encode()
    with zipfile.ZipFile(target, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)


def record_row(name: str, data: bytes) -> str:
    if name.endswith("/RECORD"):
        return f"{name},,"
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"
