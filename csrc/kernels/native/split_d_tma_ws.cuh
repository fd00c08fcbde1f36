// native.split_d_tma_ws: split_d with K and V brought by the bulk tensor copy engine, asked for by a warp of its own,
// so that the warps that compute wait for data and for the warps they share rows with, never for a whole block.
#pragma once

#include "abi/attention_params.h"
#include "core/kernel_entry.cuh"
#include "core/opaque.cuh"
#include "core/swizzle.cuh"
#include "kernels/native/attend_rows.cuh"
#include "kernels/native/tiles.cuh"
#include "kernels/native/tma_ring.cuh"
#include "kernels/native/traits.cuh"
#include "kernels/native/work_tile.cuh"
#include "ptx/memory.cuh"
#include "ptx/warpgroup.cuh"

namespace ffpa::native {

// A large head dim that ends inside a box is computed to the end of the box, whose columns the engine has set to zero:
// the loops that stop earlier spill.
template <class Variant>
struct WholeBoxes : Variant {
  static constexpr int kHeadDim =
      Variant::kHeadDim > 256 ? ceil_div(Variant::kHeadDim, ffpa::kBoxCols) * ffpa::kBoxCols : Variant::kHeadDim;
};

template <class Variant>
struct SplitDTmaWs {
  using Params = abi::TmaAttentionParams;
  using T = Traits<WholeBoxes<Variant>, TmaTiles, PrefillWork>;
  static constexpr int kProducerThreads = 128;  // registers change hands by warpgroups
  static constexpr int kThreads = T::kThreads + kProducerThreads;
  // With four consumer warps two blocks share a multiprocessor, and so its registers.
  static constexpr int kMinBlocks = T::kThreads == 128 ? 2 : 1;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = T::kThreads == 128 ? 232 : 240;
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
  // A block has the registers that it was launched with, in eights a thread: a claim for more would wait for ever.
  static_assert(kConsumerRegisters * T::kThreads + kProducerRegisters * kProducerThreads <=
                65536 / kMinBlocks / kThreads / 8 * 8 * kThreads);

  static __device__ __forceinline__ void run(const Params& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 smem = ptx::shared_address(shared);
    const TmaSlots<T> slots{smem};
    slots.init();
    const int warp = ptx::uniform(opaque(threadIdx.x) / 32);
    const typename T::Work work(p.a);
    if (warp < T::kThreads / 32) {
      ptx::claim_registers<kConsumerRegisters>();
      const Scores<T> scores(p.a, work, smem);
      TmaReader<T> ring(slots);
      attend_rows<T>(p.a, work, scores, smem, ring);
    } else {
      ptx::release_registers<kProducerRegisters>();
      if (warp == T::kThreads / 32 && ptx::elect_one()) produce<T>({p, work, slots});
    }
  }
};

}  // namespace ffpa::native
