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
  __device__ PositionMask(const abi::AttentionParams& p, const typename T::Work& w)
      : p_(p),
        untouched_(T::turns(p) ? 0 : min(p.kv_len, p.causal ? w.first_query() + p.causal_offset + 1 : p.kv_len)) {}

  __device__ __forceinline__ void apply(float (&s)[T::kMTiles][T::kSTiles][4], int key0) const {
    if (key0 + T::kTileN <= untouched_) return;
    const typename T::Work work(p_);  // anew, because the pass is rare and registers are not
    const FragmentPlace<T> place(key0);
    const float sign = T::turns(p_) ? -1.0f : 1.0f;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = work.query(p_, place.row(m, half));
        const int end = p_.causal ? min(p_.kv_len, query + p_.causal_offset + 1) : p_.kv_len;
#pragma unroll
        for (int n = 0; n < T::kSTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& x = s[m][n][2 * half + j];
            x = place.col(n) + j < end ? x * sign : -ptx::infinity();
          }
        }
      }
    }
  }

 private:
  const abi::AttentionParams& p_;
  int untouched_;  // the pass changes nothing in tiles of keys that end before this one
};

}  // namespace ffpa::native
