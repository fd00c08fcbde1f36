// native.split_d: prefill with mma.sync for every architecture, head dims 8 .. 1024.
//
// Q of the block's rows stays in shared memory. K and V stream through one ring of [keys][64 columns] boxes: S is summed
// over the boxes of K, O is updated a box of V at a time, and so shared memory and the S accumulator do not grow with D.
#pragma once

#include "abi/attention_params.h"
#include "core/kernel_entry.cuh"
#include "core/opaque.cuh"
#include "kernels/native/copy_boxes.cuh"
#include "kernels/native/dropout.cuh"
#include "kernels/native/epilogue.cuh"
#include "kernels/native/kv_ring.cuh"
#include "kernels/native/mask.cuh"
#include "kernels/native/p_operand.cuh"
#include "kernels/native/scores.cuh"
#include "kernels/native/softmax.cuh"
#include "kernels/native/tile_mma.cuh"
#include "kernels/native/tiles.cuh"
#include "kernels/native/traits.cuh"
#include "kernels/native/work_tile.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

// One block's rows of O and LSE, by T::kThreads threads. `ring` gives them Q, K and V.
template <class T, class Ring>
__device__ __forceinline__ void attend_rows(const abi::AttentionParams& p, const typename T::Work& work,
                                            const Scores<T>& scores, u32 smem, Ring& ring) {
  const WarpLanes<T> lanes;
  const PositionMask<T> mask(p, work);
  OnlineSoftmax<T> softmax(scores.factor());

  float o[T::kMTiles][T::kOTiles][4] = {};
#pragma unroll 1
  for (int tile = 0; tile < work.kv_tiles; ++tile) {
    tile = opaque(tile);
    const u32 boxes = opaque(smem);
    const int key0 = tile * T::kTileN;

    float s[T::kMTiles][T::kSTiles][4] = {};
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      const u32 k = ring.next(tile, step);
      mma_qk<T>(s, lanes, boxes + T::kQOffset + step * T::kStepBoxes * (T::kTileM * kBoxRowBytes), k, step);
      ring.release(tile, step);
    }

    scores.apply(s);
    mask.apply(s, key0);
    softmax.step(s, o, RowExchange<T>{boxes + T::kStatsOffset});
    if constexpr (T::kDropout) Dropout<T>(p).apply(s, key0);

    u32 weights[T::kMTiles][T::kKSlices][4];
    make_p_operand<T>(weights, s, lanes, boxes + T::kPOffset);

#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      const u32 v = ring.next(tile, T::kSteps + step, [&] {
        if (step == 0) scores.start(tile + 1);
      });
      mma_pv<T>(o, weights, lanes, v, step);
      ring.release(tile, T::kSteps + step);
    }
  }
  ring.drain();

  softmax.finish(RowExchange<T>{smem + T::kStatsOffset});
  const typename T::Work rows(p);  // `work` again, whose registers the loop needed
  store_output<T>(p, rows, softmax, o, smem + T::kQOffset);
  store_lse<T>(p, rows, softmax);
}

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
