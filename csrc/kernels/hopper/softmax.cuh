// Online softmax over score fragments as wgmma leaves them: a thread holds two rows, `g` and `g + 8` of its warp's 16,
// and in each the columns 8 * i + 2 * t (+ 1), where g = lane / 4 and t = lane % 4.
#pragma once

#include "abi/attention_params.h"
#include "ptx/math.cuh"

namespace ffpa::hopper {

// The units of scores. Weights are exp2(factor * (score - maximum)).
//
// Without a mask tensor the scale is folded into the exponent: scores stay raw dot products, times the sign of the
// scale. The floor of the factor keeps -inf * factor = -inf when the scale is 0.
template <bool kMasked>
struct ScoreUnits {
  // Where running maxima start. Finite, so that a row whose first keys are all masked does not give inf - inf.
  static constexpr float kMaxFloor = -1e30f;

  static __device__ __forceinline__ float factor(const abi::AttentionParams& a) {
    return fmaxf(fabsf(a.scale_log2), 1e-30f);
  }

  // Of a score, in natural units: those of the LSE.
  static __device__ __forceinline__ float natural(const abi::AttentionParams& a) { return fabsf(a.scale); }
};

// With an additive one they are scale * QK^T + mask, with a boolean one as without. An additive mask may hold the
// lowest number of its type, and running maxima start below every score that is not -inf.
template <>
struct ScoreUnits<true> {
  static constexpr float kMaxFloor = -3.402823466e38f;

  static __device__ __forceinline__ float factor(const abi::AttentionParams& a) {
    return a.mask_kind == abi::MaskKind::boolean ? ScoreUnits<false>::factor(a) : ptx::kLog2e;
  }
  static __device__ __forceinline__ float natural(const abi::AttentionParams& a) {
    return a.mask_kind == abi::MaskKind::boolean ? ScoreUnits<false>::natural(a) : 1.f;
  }
};

template <int kCount>
__device__ __forceinline__ void apply_sign(float* scores, float scale_log2) {
  if (scale_log2 < 0.f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scores[i] = -scores[i];
  }
}

// Reductions over the four lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The maximum of each row of a fragment with kCount scores a thread.
template <int kCount>
__device__ __forceinline__ void row_max(const float* scores, float (&maximum)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float x = fmaxf(scores[2 * row], scores[2 * row + 1]);
#pragma unroll
    for (int i = 4 + 2 * row; i < kCount; i += 4) x = fmaxf(x, fmaxf(scores[i], scores[i + 1]));
    maximum[row] = quad_max(x);
  }
}

// Where a mask has made a maximum so large that its product with the factor would overflow, takes it from the scores
// beforehand; what is left to subtract, `scaled_max`, is then 0.
template <int kCount>
__device__ __forceinline__ void subtract_huge(float* scores, const float (&maximum)[2], float (&scaled_max)[2]) {
  constexpr float kHuge = 1e38f;
  if (__any_sync(0xffffffffu, fmaxf(fabsf(maximum[0]), fabsf(maximum[1])) > kHuge)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scores[i] -= maximum[i / 2 % 2];
    scaled_max[0] = scaled_max[1] = 0.f;
  }
}

// Columns a row attends to by position: those below a limit.
struct ColumnLimit {
  int limit[2];   // of the thread's two rows
  int unlimited;  // columns below this are visible to every row of the tile

  ColumnLimit() = default;

  __device__ __forceinline__ ColumnLimit(int first_row, int row_g, int key_end, bool causal, int causal_offset) {
    unlimited = causal ? min(key_end, first_row + causal_offset + 1) : key_end;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      limit[row] = causal ? min(key_end, row_g + 8 * row + causal_offset + 1) : key_end;
    }
  }

  __device__ __forceinline__ bool touches(int column_end) const { return column_end > unlimited; }

  // `first_column` is the column of scores[0].
  template <int kCount>
  __device__ __forceinline__ void apply(float* scores, int first_column) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = i / 4 * 8 + i % 2;
      if (column >= limit[i / 2 % 2] - first_column) scores[i] = -ptx::infinity();
    }
  }
};

}  // namespace ffpa::hopper
