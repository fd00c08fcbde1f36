// What a block of a prefill kernel computes, whoever brings Q, K and V.
//
// Q of the block's rows stays in shared memory. K and V stream through one ring of [keys][64 columns] boxes: S is
// summed over the boxes of K, O is updated a box of V at a time, and so shared memory and the S accumulator do not grow
// with D.
#pragma once

#include "abi/attention_params.h"
#include "core/opaque.cuh"
#include "core/swizzle.cuh"
#include "kernels/native/dropout.cuh"
#include "kernels/native/epilogue.cuh"
#include "kernels/native/mask.cuh"
#include "kernels/native/p_operand.cuh"
#include "kernels/native/scores.cuh"
#include "kernels/native/softmax.cuh"
#include "kernels/native/tile_mma.cuh"

namespace ffpa::native {

// The block's rows of O and LSE, by T::kThreads threads. `ring` (kv_ring.cuh, tma_ring.cuh) brings K and V; Q has
// arrived when the ring's first step has.
template <class T, class Ring>
__device__ __forceinline__ void attend_rows(const abi::AttentionParams& p, const typename T::Work& work,
                                            const Scores<T>& scores, u32 smem, Ring& ring) {
  const WarpLanes<T> lanes;
  const PositionMask<T> mask(p, work);
  OnlineSoftmax<T> softmax(scores.factor());
  const DropoutOf<T> dropout(p, work);

  float o[T::kMTiles][T::kOTiles][4] = {};
  ring.commit_mask();
#pragma unroll 1
  for (int tile = 0; tile < work.kv_tiles; ++tile) {
    tile = opaque(tile);
    const u32 boxes = opaque(smem);
    const int key0 = tile * T::kTileN;

    auto drawing = dropout.begin(key0);
    float s[T::kMTiles][T::kSTiles][4] = {};
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      const u32 k = ring.next(tile, step);
      const u32 q = boxes + T::kQOffset + step * T::kStepBoxes * (T::kTileM * kBoxRowBytes);
      ring.release(tile, step, mma_qk<T>(s, lanes, q, k, step, drawing));
    }

    const auto keep = drawing.finish();
    ring.await_mask();
    scores.apply(s);
    mask.apply(s, key0);
    softmax.step(s, o, RowExchange<T>{boxes + T::kStatsOffset});

    u32 weights[T::kMTiles][T::kKSlices][4];
    make_p_operand<T>(weights, s, lanes, boxes + T::kPOffset, keep);
    scores.start(tile + 1);
    ring.commit_mask();

#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      const u32 v = ring.next(tile, T::kSteps + step);
      ring.release(tile, T::kSteps + step, mma_pv<T>(o, weights, lanes, v, step));
    }
  }
  ring.drain();

  softmax.finish(RowExchange<T>{smem + T::kStatsOffset});
  const typename T::Work rows(p);  // `work` again, whose registers the loop needed
  store_output<T>(p, rows, softmax, o, smem + T::kQOffset);
  store_lse<T>(p, rows, softmax);
}

}  // namespace ffpa::native
