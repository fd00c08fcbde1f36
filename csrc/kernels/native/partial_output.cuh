// Writes O, row maximum and row sum of a split: fp32 partials for the merge kernel, or the result itself when there is
// one split.
#pragma once

#include "abi/attention_params.h"
#include "kernels/native/fragment.cuh"
#include "kernels/native/softmax.cuh"
#include "ptx/math.cuh"

namespace ffpa::native {

template <class T>
__device__ __forceinline__ void store_partial(const abi::AttentionParams& p, const typename T::Work& w,
                                              const OnlineSoftmax<T>& softmax,
                                              const float (&o)[T::kMTiles][T::kOTiles][4]) {
  using Element = typename T::Element;
  static_assert(T::kMTiles == 1);
  const FragmentPlace<T> place(0);
  const u32 first_col = Lane<T>::warp_n() * T::kVCols + 2 * Lane<T>::t();
  const bool writes_lse = Lane<T>::warp_n() == 0 && Lane<T>::t() == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = place.row(0, half);
    if (!w.valid(p, r)) continue;
    const int head = w.head_of(p, r);
    const int query = w.query(p, r);
    const i64 row = (static_cast<i64>(w.batch) * p.heads + head) * p.q_len + query;
    const i64 partial_row = static_cast<i64>(w.split) * p.batch * p.heads * p.q_len + row;
    const float gain = softmax.inverse_sum(0, half);
    u16* out = static_cast<u16*>(p.o) + w.batch * p.o_stride.batch + head * p.o_stride.head + query * p.o_stride.row;
    float* partial = p.partial_o + partial_row * p.head_dim;
#pragma unroll
    for (int n = 0; n < T::kOTiles; ++n) {
      const int col = n / T::kVTiles * T::kStepCols + first_col + n % T::kVTiles * 8;
      if (col >= p.head_dim) continue;
      const float x = o[0][n][2 * half] * gain;
      const float y = o[0][n][2 * half + 1] * gain;
      if (p.splits > 1) {
        *reinterpret_cast<float2*>(partial + col) = float2{x, y};
      } else {
        const u32 pair = ptx::pack2<Element>(x, y);
        out[col] = static_cast<u16>(pair);
        out[col + 1] = static_cast<u16>(pair >> 16);
      }
    }
    if (writes_lse) {
      if (p.splits > 1) {
        reinterpret_cast<float2*>(p.partial_stats)[partial_row] = {softmax.maximum(0, half), softmax.sum(0, half)};
      } else if (p.lse != nullptr) {
        p.lse[row] = softmax.lse(0, half);
      }
    }
  }
}

}  // namespace ffpa::native
