// native.split_kv: decode. The keys are split over blocks, the query heads that share a KV head are packed into one MMA
// tile, and so K and V are read once. Partial results are merged by native.merge.
#pragma once

#include "abi/attention_params.h"
#include "core/kernel_entry.cuh"
#include "core/opaque.cuh"
#include "kernels/native/copy_boxes.cuh"
#include "kernels/native/dropout.cuh"
#include "kernels/native/kv_ring.cuh"
#include "kernels/native/mask.cuh"
#include "kernels/native/p_operand.cuh"
#include "kernels/native/partial_output.cuh"
#include "kernels/native/scores.cuh"
#include "kernels/native/softmax.cuh"
#include "kernels/native/tile_mma.cuh"
#include "kernels/native/tiles.cuh"
#include "kernels/native/traits.cuh"
#include "kernels/native/work_tile.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

template <class Variant>
struct SplitKv {
  using Params = abi::AttentionParams;
  using T = Traits<Variant, DecodeTiles, DecodeWork>;
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
  static_assert(!T::kDropout, "decode has no dropout");

  static __device__ __forceinline__ void run(const Params& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 smem = ptx::shared_address(shared);
    const typename T::Work work(p);
    const Scores<T> scores(p, work, smem);
    copy_query_rows<T>(p, work, smem + T::kQOffset);
    CpAsyncRing<T> ring(p, work, smem);

    const WarpLanes<T> lanes;
    const PositionMask<T> mask(p, work);
    const RowExchange<T> exchange{smem + T::kStatsOffset};
    OnlineSoftmax<T> softmax(scores.factor());
    const NoDropout<T> dropout(p, work);

    float o[T::kMTiles][T::kOTiles][4] = {};
#pragma unroll 1
    for (int tile = work.kv_begin; tile < work.kv_tiles; ++tile) {
      tile = opaque(tile);
      auto drawing = dropout.begin(tile * kTileN);
      float s[T::kMTiles][T::kSTiles][4] = {};
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
        const u32 k = ring.next(tile, step);
        mma_qk<T>(s, lanes, smem + T::kQOffset + step * T::kStepBoxes * (kTileM * kBoxRowBytes), k, step, drawing);
      }

      ring.await_mask();
      scores.apply(s);
      mask.apply(s, tile * kTileN);
      softmax.step(s, o, exchange);

      u32 weights[T::kMTiles][T::kKSlices][4];
      make_p_operand<T>(weights, s, lanes, smem + T::kPOffset, drawing.finish());
      scores.start(tile + 1);

#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
        const u32 v = ring.next(tile, T::kSteps + step);
        mma_pv<T>(o, weights, lanes, v, step);
      }
    }

    softmax.finish(exchange);
    store_partial<T>(p, work, softmax, o);
  }
};

}  // namespace ffpa::native
