"""A small source tree of its own: two archs, trivial kernels that compile in well under a second."""

from __future__ import annotations

import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

KERNEL = """
#pragma once
#include "core/kernel_entry.cuh"
#include "kernels/tiny/scale.cuh"

namespace tiny {

struct Params {
  float* out;
  int count;
};

template <class V>
struct Copy {
  using Params = tiny::Params;
  static constexpr int kThreads = 128, kMinBlocks = 1, kSmemBytes = V::kStages * 1024;
  static constexpr int kTileM = 64, kTileN = 32, kCluster = 1;
  static constexpr int kBoxCols = 0, kBoxQRows = 0, kBoxKvRows = 0, kSwizzle = 0, kPersistent = 0;
  static __device__ void run(const Params& p) {
    if (threadIdx.x < p.count) p.out[threadIdx.x] = scale(V::kHeadDim) + V::kArch + V::kBias;
  }
};

}  // namespace tiny
"""

SCALE = """
#pragma once
namespace tiny {
__device__ inline float scale(int head_dim) { return 2.0f * head_dim; }
}  // namespace tiny
"""

ARCHS = """
[sm_89]
title = "Ada"
capabilities = ["8.9"]
min_cuda = "11.8"
smem_block_kib = 99
features = ["cp_async"]
auto = ["native"]
aliases = ["sm89", "89", "ada"]

[sm_90a]
title = "Hopper"
capabilities = ["9.0"]
min_cuda = "12.0"
smem_block_kib = 227
features = ["cp_async", "tma"]
auto = ["hopper", "native"]
aliases = ["sm90", "90", "hopper"]
"""

FAMILIES = """
[tiny]
title = "trivial kernels"

[tiny.copy]
title = "writes a constant"
ext = "native"
header = "kernels/tiny/copy.cuh"
kernel = "tiny::Copy"
recipe = "split_d"
problems = ["prefill"]
archs = ["sm_89", "sm_90a"]
requires = ["cp_async"]
dtypes = ["bf16", "fp16"]
acc = ["f32", "f16"]
head_dim = { min = 8, max = 1024, multiple = 8 }
stages = [2, 3]
features = ["bias", "bias32", "dropout"]
exclusive = ["bias", "bias32"]
spills = []
"""

PACKS = """
[core]
distribution = "ffpa-core"
package = "ffpa_pack_core"
title = "core"
families = ["tiny"]
archs = ["sm_89"]

[extra]
distribution = "ffpa-extra"
package = "ffpa_pack_extra"
title = "a second pack"
families = ["tiny"]
archs = ["sm_90a"]
"""

PRESETS = """
[head_dims]
default = [64, 128]
all = [64, 128, 768]

[preset.default]
title = "one kernel an arch"
archs = ["sm_89", "sm_90a"]
ext = "all"
head_dims = [64]
dtypes = ["bf16"]
acc = ["f32"]
stages = [2]
features = []

[preset.emulated]
title = "Ada kernels for Hopper"
archs = ["sm_90a"]
emulate = ["sm_89"]
ext = "all"
head_dims = [64]
dtypes = ["bf16"]
acc = ["f32"]
stages = [2]
features = []
"""


def write_tree(root: Path) -> None:
    """Writes the tree, with the contracts and the toolchains of this repository."""
    (root / "csrc" / "kernels" / "tiny").mkdir(parents=True)
    for folder in ("abi", "core"):
        shutil.copytree(REPOSITORY / "csrc" / folder, root / "csrc" / folder)
    (root / "csrc/kernels/tiny/copy.cuh").write_text(KERNEL)
    (root / "csrc/kernels/tiny/scale.cuh").write_text(SCALE)
    shutil.copytree(REPOSITORY / "variants" / "toolchains", root / "variants" / "toolchains")
    for name, text in {"archs": ARCHS, "families": FAMILIES, "packs": PACKS, "presets": PRESETS}.items():
        (root / "variants" / f"{name}.toml").write_text(text)
    (root / "VERSION").write_text("0.1.0\n")
