// Stores of O and of the log-sum-exp from accumulator fragments.
#pragma once

#include "abi/attention_params.h"
#include "kernels/hopper/softmax.cuh"

namespace ffpa::hopper {

// What to multiply a row of O with, given the sum of its weights. A row that saw no key is zero.
__device__ __forceinline__ float inverse_or_zero(float sum) { return sum > 0.f ? 1.f / sum : 0.f; }

// Natural-log LSE from the maximum score, `natural` times which is in natural units, and the sum of weights relative to
// it.
__device__ __forceinline__ float log_sum_exp(float maximum, float sum, float natural) {
  return sum > 0.f ? maximum * natural + __logf(sum) : -ptx::infinity();
}

// Stores one row's part of an accumulator fragment: kCount accumulators a thread over two rows, of which `row_half`
// chooses one. The four lanes of a row first exchange 4-byte pieces so that each stores 16 bytes.
template <class Element, int kCount>
__device__ __forceinline__ void store_row_fragment(const float* accumulators, int row_half, float factor, Element* row,
                                                   int first_column, int columns, bool row_exists) {
  static_assert(kCount % 16 == 0, "column groups of 32");
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int group = 0; group < kCount / 16; ++group) {
    u32 piece[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = accumulators + group * 16 + i * 4 + row_half * 2;
      piece[i] = ptx::pack2<Element>(pair[0] * factor, pair[1] * factor);
    }
    // Transpose 4 x 4 within the quad: lane t ends with the pieces that the four lanes hold of column block t.
    u32 low = t & 1 ? piece[0] : piece[1];
    u32 high = t & 1 ? piece[2] : piece[3];
    low = __shfl_xor_sync(0xffffffffu, low, 1);
    high = __shfl_xor_sync(0xffffffffu, high, 1);
    if (t & 1) {
      piece[0] = low;
      piece[2] = high;
    } else {
      piece[1] = low;
      piece[3] = high;
    }
    low = t & 2 ? piece[0] : piece[2];
    high = t & 2 ? piece[1] : piece[3];
    low = __shfl_xor_sync(0xffffffffu, low, 2);
    high = __shfl_xor_sync(0xffffffffu, high, 2);
    if (t & 2) {
      piece[0] = low;
      piece[1] = high;
    } else {
      piece[2] = low;
      piece[3] = high;
    }
    const int column = first_column + group * 32 + t * 8;
    if (row_exists && column < columns) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(row + column), "r"(piece[0]), "r"(piece[1]),
                   "r"(piece[2]), "r"(piece[3])
                   : "memory");
    }
  }
}

}  // namespace ffpa::hopper
