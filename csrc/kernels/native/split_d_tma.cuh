// native.split_d_tma: split_d with K and V brought by the bulk tensor copy engine, asked for by the first warp.
#pragma once

#include "abi/attention_params.h"
#include "core/kernel_entry.cuh"
#include "core/swizzle.cuh"
#include "kernels/native/attend_rows.cuh"
#include "kernels/native/tiles.cuh"
#include "kernels/native/tma_ring.cuh"
#include "kernels/native/traits.cuh"
#include "kernels/native/work_tile.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

template <class Variant>
struct SplitDTma {
  using Params = abi::TmaAttentionParams;
  using T = Traits<Variant, TmaTiles, PrefillWork>;
  static constexpr int kThreads = T::kThreads;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSmemBytes = TmaSlots<T>::kSmemBytes;
  static constexpr int kTileM = T::kTileM;
  static constexpr int kTileN = T::kTileN;
  static constexpr int kCluster = 1;
  static constexpr int kBoxCols = ffpa::kBoxCols;
  static constexpr int kBoxQRows = kTileM;
  static constexpr int kBoxKvRows = kTileN;
  static constexpr int kSwizzle = kBoxRowBytes;
  static constexpr int kPersistent = 0;
  static_assert(kSmemBytes <= Variant::kSmemBlock);

  static __device__ __forceinline__ void run(const Params& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 smem = ptx::shared_address(shared);
    const typename T::Work work(p.a);
    const Scores<T> scores(p.a, work, smem);
    TmaRing<T> ring(p, work, smem);
    attend_rows<T>(p.a, work, scores, smem, ring);
  }
};

}  // namespace ffpa::native
