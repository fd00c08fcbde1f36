// Writes O and LSE of a block's rows.
#pragma once

#include "abi/attention_params.h"
#include "core/swizzle.cuh"
#include "kernels/native/fragment.cuh"
#include "kernels/native/softmax.cuh"
#include "ptx/barrier.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

// O passes through the shared memory of Q, so that global stores are whole rows of 16-byte units.
template <class T>
__device__ __forceinline__ void store_output(const abi::AttentionParams& p, const typename T::Work& w,
                                             const OnlineSoftmax<T>& softmax, float (&o)[T::kMTiles][T::kOTiles][4],
                                             u32 boxes) {
  using Element = typename T::Element;
  constexpr int kOBox = T::kTileM * kBoxRowBytes;
  ptx::group_sync<T::kThreads>(0);  // nobody reads Q any more
  const u32 row = Lane<T>::warp_m() * T::kRowsWarp + Lane<T>::g();
  const u32 warp_col = Lane<T>::warp_n() * T::kVCols;
  const u32 in_unit = 4 * Lane<T>::t();
#pragma unroll
  for (int m = 0; m < T::kMTiles; ++m) {
    const float gain = T::kDropout ? p.inv_keep : 1.0f;
    const float lo = softmax.inverse_sum(m, 0) * gain;
    const float hi = softmax.inverse_sum(m, 1) * gain;
#pragma unroll
    for (int n = 0; n < T::kOTiles; ++n) {
      const u32 col = n / T::kVTiles * T::kStepCols + warp_col + n % T::kVTiles * 8;
      if (T::kWarpsN == 1 && n * 8 >= T::kHeadDim) break;
      const u32 address = boxes + col / kBoxCols * kOBox + swizzled(row + m * 16, col % kBoxCols / 8) + in_unit;
      ptx::store_shared(address, ptx::pack2<Element>(o[m][n][0] * lo, o[m][n][1] * lo));
      ptx::store_shared(address + 8 * kBoxRowBytes, ptx::pack2<Element>(o[m][n][2] * hi, o[m][n][3] * hi));
    }
  }
  ptx::group_sync<T::kThreads>(0);

  u16* out = static_cast<u16*>(p.o) + w.batch * p.o_stride.batch + w.head * p.o_stride.head;
  const bool aligned = (reinterpret_cast<u64>(out) & 15) == 0 && (p.o_stride.row & 7) == 0;
  const int rows = min(T::kTileM, p.q_len - w.row0);
  constexpr int kUnits = ceil_div(T::kHeadDim, 8);
  for (int i = threadIdx.x; i < rows * kUnits; i += T::kThreads) {
    const int r = i / kUnits;
    const int unit = i - r * kUnits;
    if (unit * 8 >= p.head_dim) continue;
    const uint4 x = ptx::load_shared_16(boxes + unit / 8 * kOBox + swizzled(r, unit % 8));
    u16* to = out + static_cast<i64>(w.row0 + r) * p.o_stride.row + unit * 8;
    if (aligned) {
      *reinterpret_cast<uint4*>(to) = x;
    } else {
      const u32 pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = static_cast<u16>(pairs[j / 2] >> (j % 2 * 16));
    }
  }
}

template <class T>
__device__ __forceinline__ void store_lse(const abi::AttentionParams& p, const typename T::Work& w,
                                          const OnlineSoftmax<T>& softmax) {
  if (p.lse == nullptr || Lane<T>::warp_n() != 0 || Lane<T>::t() != 0) return;
  const FragmentPlace<T> place(0);
  float* out = p.lse + (static_cast<i64>(w.batch) * p.heads + w.head) * p.q_len;
#pragma unroll
  for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = w.row0 + place.row(m, half);
      if (row < p.q_len) out[row] = softmax.lse(m, half);
    }
  }
}

}  // namespace ffpa::native
