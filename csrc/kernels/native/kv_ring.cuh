// The stream of K and V boxes of one block: for every tile of keys the steps of K, then the steps of V.
//
// A step is kStepBoxes boxes of [kTileN keys][64 columns]. The consumer calls `next(tile, step)` once a step, which gives
// the shared address of the step's first box, `release(tile, step)` when it has read the step, and `drain()` after the last
// tile, when nothing may be written to shared memory any more. The rings of tma_ring.cuh have the same three.
#pragma once

#include "abi/attention_params.h"
#include "core/opaque.cuh"
#include "core/swizzle.cuh"
#include "kernels/native/work_tile.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"

namespace ffpa::native {

// Copies kRows x 64 columns a box with all threads of the block; rows from `rows` and columns from `cols` on become zero.
template <int kRows, int kBoxCount, int kThreads>
__device__ __forceinline__ void copy_boxes(u32 shared, const char* source, i64 row_bytes, int rows, int cols) {
  constexpr int kRowsPass = kThreads / 8;
  static_assert(kRows % kRowsPass == 0);
  const u32 thread = opaque(threadIdx.x);  // its products with row_bytes are cheaper to repeat than to keep
  const int unit = thread & 7;
  const int row0 = thread >> 3;
  // kRowsPass is a multiple of 8, so the swizzle of a thread's unit is the same in every pass.
  const u32 target = shared + swizzled(row0, unit);
  const char* from = source + row0 * row_bytes + unit * 16;
#pragma unroll
  for (int pass = 0; pass < kRows / kRowsPass; ++pass) {
    const bool row_valid = row0 + pass * kRowsPass < rows;
#pragma unroll
    for (int box = 0; box < kBoxCount; ++box) {
      const bool valid = row_valid && box * kBoxCols + unit * 8 < cols;
      ptx::cp_async_16(target + box * (kRows * kBoxRowBytes) + pass * (kRowsPass * kBoxRowBytes),
                       from + box * kBoxRowBytes, valid);
    }
    from += kRowsPass * row_bytes;
  }
}

template <class T>
class CpAsyncRing {
 public:
  // Starts the copy of Q, which the first `next()` waits for, and of the first kStages - 1 steps.
  __device__ CpAsyncRing(const abi::AttentionParams& p, const WorkTile& w, u32 smem)
      : p_(p),
        k_(static_cast<const char*>(p.k) + 2 * (w.batch * p.k_stride.batch + w.kv_head * p.k_stride.head)),
        v_(static_cast<const char*>(p.v) + 2 * (w.batch * p.v_stride.batch + w.kv_head * p.v_stride.head)),
        tiles_(w.kv_tiles),
        ring_(smem + T::kRingOffset) {
    const char* q = static_cast<const char*>(p.q) +
                    2 * (w.batch * p.q_stride.batch + w.head * p.q_stride.head + w.row0 * p.q_stride.row);
    copy_boxes<T::kTileM, T::kBoxes, T::kThreads>(smem + T::kQOffset, q, 2 * p.q_stride.row, p.q_len - w.row0,
                                                  p.head_dim);
#pragma unroll
    for (int step = 0; step < T::kStages - 1; ++step) start_step(0, step);
  }

  // Waits for step `step` of tile `tile`: steps 0 .. kSteps - 1 are K's, kSteps .. 2 kSteps - 1 are V's. Call in order,
  // with a `step` that is constant once loops are unrolled: what to copy next is then known when compiling.
  __device__ __forceinline__ u32 next(int tile, int step) {
    ptx::cp_async_wait<T::kStages - 2>();
    ptx::block_sync();  // the step has arrived for every thread, and every thread is done with the step before it
    start_step(tile, step + T::kStages - 1);  // into the slot that this frees; the one after it holds the step
    return ring_ + slot_;
  }

  __device__ __forceinline__ void release(int, int) {}  // the barrier of the following `next` says so

  __device__ __forceinline__ void drain() { ptx::cp_async_wait<0>(); }

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
