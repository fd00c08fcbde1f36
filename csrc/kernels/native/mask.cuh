// The keys a row may attend to by position: up to the causal diagonal and the end of the keys. The same rare pass turns
// raw scores round when the scale is negative.
#pragma once

#include "abi/attention_params.h"
#include "kernels/native/fragment.cuh"
#include "ptx/math.cuh"

namespace ffpa::native {

template <class T>
class PositionMask {
 public:
  __device__ PositionMask(const abi::AttentionParams& p, const FragmentPlace<T>& place, int tile_row0)
      : place_(place),
        kv_len_(p.kv_len),
        diagonal_(p.causal ? p.causal_offset : p.kv_len),
        sign_(p.scale_log2 < 0.0f ? -1.0f : 1.0f),
        open_keys_(p.scale_log2 < 0.0f ? 0 : min(p.kv_len, tile_row0 + diagonal_ + 1)) {}

  // True when `apply` changes an element of the block's tile at `key0`.
  __device__ bool touches(int key0) const { return key0 + T::kTileN > open_keys_; }

  __device__ __forceinline__ void apply(float (&s)[T::kMTiles][T::kSTiles][4], int key0) const {
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int end = min(kv_len_, place_.row(m, half) + diagonal_ + 1);
#pragma unroll
        for (int n = 0; n < T::kSTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& x = s[m][n][2 * half + j];
            x = place_.col(key0, n) + j < end ? x * sign_ : -ptx::infinity();
          }
        }
      }
    }
  }

 private:
  const FragmentPlace<T>& place_;
  int kv_len_;
  int diagonal_;   // row r attends to keys <= r + diagonal_
  float sign_;
  int open_keys_;  // tiles of keys below need no pass
};

}  // namespace ffpa::native
