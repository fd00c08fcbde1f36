// Copies from global memory into swizzled boxes by cp.async, by all threads of a block.
#pragma once

#include "abi/attention_params.h"
#include "core/opaque.cuh"
#include "core/swizzle.cuh"
#include "ptx/cp_async.cuh"

namespace ffpa::native {

// Copies kRows x 64 columns a box with all threads of the block; rows from `rows` and columns from `cols` on become
// zero.
template <int kRows, int kBoxCount, int kThreads>
__device__ __forceinline__ void copy_boxes(u32 shared, const char* source, i64 row_bytes, int rows, int cols) {
  constexpr int kRowsPass = kThreads / 8;
  static_assert(kRows % kRowsPass == 0 || kRows < kRowsPass);
  const u32 thread = opaque(threadIdx.x);  // its products with row_bytes are cheaper to repeat than to keep
  const int unit = thread & 7;
  const int row0 = thread >> 3;
  if constexpr (kRows < kRowsPass) {
    if (row0 >= kRows) return;
  }
  // kRowsPass is a multiple of 8, so the swizzle of a thread's unit is the same in every pass.
  const u32 target = shared + swizzled(row0, unit);
  const char* from = source + row0 * row_bytes + unit * 16;
#pragma unroll
  for (int pass = 0; pass < ceil_div(kRows, kRowsPass); ++pass) {
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

// Q of a work tile whose rows lie anywhere.
template <class T>
__device__ __forceinline__ void copy_query_rows(const abi::AttentionParams& p, const typename T::Work& w, u32 shared) {
  constexpr int kUnitsRow = T::kBoxes * 8;
  const u16* q = static_cast<const u16*>(p.q) + w.batch * p.q_stride.batch;
#pragma unroll 1
  for (int i = threadIdx.x; i < T::kTileM * kUnitsRow; i += T::kThreads) {
    const int r = i / kUnitsRow;
    const int unit = i % kUnitsRow;
    const bool valid = w.valid(p, r) && unit * 8 < p.head_dim;
    const u16* from = valid ? q + w.head_of(p, r) * p.q_stride.head + w.query(p, r) * p.q_stride.row + unit * 8 : q;
    ptx::cp_async_16(shared + unit / 8 * (T::kTileM * kBoxRowBytes) + swizzled(r, unit % 8), from, valid);
  }
}

// Q of consecutive rows of one head.
template <class T>
__device__ __forceinline__ void copy_query_tile(const abi::AttentionParams& p, const typename T::Work& w, u32 shared) {
  const char* q = static_cast<const char*>(p.q) +
                  2 * (w.batch * p.q_stride.batch + w.head * p.q_stride.head + w.row0 * p.q_stride.row);
  copy_boxes<T::kTileM, T::kBoxes, T::kThreads>(shared, q, 2 * p.q_stride.row, p.q_len - w.row0, p.head_dim);
}

}  // namespace ffpa::native
