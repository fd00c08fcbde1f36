// The stream of K and V boxes of one block: for every tile of keys the steps of K, then the steps of V.
//
// A step is kStepBoxes boxes of [kTileN keys][64 columns]. The consumer calls `next(tile, step)` once a step, which
// gives the shared address of the step's first box, `release(tile, step, last_read)` when it has read the step, with a
// value that needs what it read last, and `drain()` after the last tile, when nothing may be written to shared memory
// any more.
// The rings of tma_ring.cuh have the same three.
#pragma once

#include "abi/attention_params.h"
#include "core/swizzle.cuh"
#include "kernels/native/copy_boxes.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"

namespace ffpa::native {

template <class T>
class CpAsyncRing {
 public:
  // Starts the copy of the first kStages - 1 steps. Copies begun before (Q) have arrived at the first `next`.
  __device__ CpAsyncRing(const abi::AttentionParams& p, const typename T::Work& w, u32 smem)
      : p_(p),
        k_(static_cast<const char*>(p.k) + 2 * (w.batch * p.k_stride.batch + w.kv_head * p.k_stride.head)),
        v_(static_cast<const char*>(p.v) + 2 * (w.batch * p.v_stride.batch + w.kv_head * p.v_stride.head)),
        tiles_(w.kv_tiles),
        ring_(smem + T::kRingOffset) {
#pragma unroll
    for (int step = 0; step < T::kStages - 1; ++step) start_step(w.kv_begin, step);
  }

  // Waits for step `step` of tile `tile`: steps 0 .. kSteps - 1 are K's, kSteps .. 2 kSteps - 1 are V's. Call in order,
  // with a `step` that is constant once loops are unrolled: what to copy next is then known when compiling.
  __device__ __forceinline__ u32 next(int tile, int step) {
    ptx::cp_async_wait<T::kStages - 2>();
    ptx::block_sync();  // the step has arrived for every thread, and every thread is done with the step before it
    start_step(tile, step + T::kStages - 1);  // into the slot that this frees; the one after it holds the step
    return ring_ + slot_;
  }

  __device__ __forceinline__ void release(int, int, u32) {}  // the barrier of the following `next` says so

  __device__ __forceinline__ void drain() { ptx::cp_async_wait<0>(); }

  // A thread's copies of the mask, which it starts before a tile's first step of V, travel in the group of that step.
  __device__ __forceinline__ void commit_mask() const {}

  // After a tile's last step of K: the mask whose copy was started a tile ago has arrived, this thread's part of it.
  __device__ __forceinline__ void await_mask() const {
    if constexpr (T::kAnyBias && T::kStages > 2 * T::kSteps) ptx::cp_async_wait<2 * T::kSteps - 1>();
  }

 private:
  __device__ __forceinline__ void start_step(int tile, int step) {
    tile += step / (2 * T::kSteps);
    step %= 2 * T::kSteps;
    if (tile < tiles_) {
      const bool is_v = step >= T::kSteps;
      const int col = (is_v ? step - T::kSteps : step) * T::kStepCols;
      const i64 row_bytes = 2 * (is_v ? p_.v_stride.row : p_.k_stride.row);
      const int key0 = tile * T::kTileN;
      copy_boxes<T::kTileN, T::kStepBoxes, T::kThreads>(ring_ + slot_, (is_v ? v_ : k_) + key0 * row_bytes + 2 * col,
                                                        row_bytes, p_.kv_len - key0, p_.head_dim - col);
    }
    slot_ = slot_ == (T::kStages - 1) * T::kStageBytes ? 0 : slot_ + T::kStageBytes;
    ptx::cp_async_commit();  // empty groups keep the count of pending groups the same in every step
  }

  const abi::AttentionParams& p_;
  const char* k_;
  const char* v_;
  int tiles_;
  u32 ring_;
  u32 slot_ = 0;  // bytes from ring_; where the next step to copy goes
};

}  // namespace ffpa::native
