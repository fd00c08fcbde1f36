// A fragment of a mask tensor in registers, for the seesaw kernel: each thread loads the elements of its own scores.
#pragma once

#include "kernels/hopper/mask_tensor.cuh"
#include "kernels/hopper/softmax.cuh"
#include "ptx/memory.cuh"

namespace ffpa::hopper {

// For kScores scores a thread: columns 8 * i + 2 * (lane % 4) (+ 1) of rows `row` and `row` + 8. The loads are under
// way when `load` returns; the registers are those that P leaves free between its store and the next softmax.
template <class Element, int kScores, int kStepKeys>
struct MaskFragment {
  u32 pairs[kScores / 2];  // as the scores lie

  // Columns from `column` on. kTail: some may lie past the end of the keys; they become zero.
  template <bool kTail>
  __device__ __forceinline__ void load(const abi::AttentionParams& a, const TileWork& work, int row, int column) {
    if (a.mask_kind == abi::MaskKind::boolean) {
      load_as<u8, kTail>(a, work, row, column);
    } else {
      load_as<u16, kTail>(a, work, row, column);
    }
  }

  __device__ __forceinline__ void apply(const abi::AttentionParams& a, float* s) const {
    if (a.mask_kind == abi::MaskKind::boolean) {
      apply_sign<kScores>(s, a.scale_log2);
      apply_as<u8>(s, a.scale);
    } else {
      apply_as<u16>(s, a.scale);
    }
  }

 private:
  template <class Bits, bool kTail>
  __device__ __forceinline__ void load_as(const abi::AttentionParams& a, const TileWork& work, int row, int column) {
    column += threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A row that does not exist repeats the last one.
      const int query = min(work.query_row + row + 8 * half, a.q_len - 1);
      const Bits* from = HeadMask<Bits>(a, work).at(query, column);
      // Of the step after, which has the keys before.
      if (threadIdx.x % 4 == 0 && column >= kStepKeys) ptx::prefetch_l2(from - kStepKeys);
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i) {
        u32& pair = pairs[2 * i + half];
        if (!kTail || column + 8 * i + 1 < a.kv_len) {
          pair = load_pair(from + 8 * i);
        } else {
          pair = column + 8 * i < a.kv_len ? from[8 * i] : 0;
        }
      }
    }
  }

  // Volatile, so that the loads stay where they are asked for: beside the products, not behind them.
  static __device__ __forceinline__ u32 load_pair(const u16* from) {
    u32 pair;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(pair) : "l"(from));
    return pair;
  }
  static __device__ __forceinline__ u32 load_pair(const u8* from) {
    u16 pair;
    asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(pair) : "l"(from));
    return pair;
  }

  template <class Bits>
  __device__ __forceinline__ void apply_as(float* s, float scale) const {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) mask_pair<Element, Bits>(s[2 * i], s[2 * i + 1], pairs[i], scale);
  }
};

}  // namespace ffpa::hopper
