// native.split_d: prefill with cp.async and mma.sync for every architecture, head dims 8 .. 1024.
#pragma once

#include "abi/attention_params.h"
#include "core/kernel_entry.cuh"
#include "kernels/native/attend_rows.cuh"
#include "kernels/native/copy_boxes.cuh"
#include "kernels/native/kv_ring.cuh"
#include "kernels/native/tiles.cuh"
#include "kernels/native/traits.cuh"
#include "kernels/native/work_tile.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

template <class Variant>
struct SplitD {
  using Params = abi::AttentionParams;
  using T = Traits<Variant, PrefillTiles, PrefillWork>;
  static constexpr int kThreads = T::kThreads;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSmemBytes = T::kSmemBytes;
  static constexpr int kTileM = T::kTileM;
  static constexpr int kTileN = T::kTileN;
  static constexpr int kCluster = 1;
  static constexpr int kBoxCols = 0;  // no tensor maps
  static constexpr int kBoxQRows = 0;
  static constexpr int kBoxKvRows = 0;
  static constexpr int kSwizzle = 0;
  static constexpr int kPersistent = 0;

  static __device__ __forceinline__ void run(const Params& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 smem = ptx::shared_address(shared);
    const typename T::Work work(p);
    const Scores<T> scores(p, work, smem);
    copy_query_tile<T>(p, work, smem + T::kQOffset);
    CpAsyncRing<T> ring(p, work, smem);
    attend_rows<T>(p, work, scores, smem, ring);
  }
};

}  // namespace ffpa::native
