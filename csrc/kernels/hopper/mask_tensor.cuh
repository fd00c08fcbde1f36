// An attention mask tensor: where its elements lie, and how a pair of them meets a pair of scores.
#pragma once

#include "abi/attention_params.h"
#include "core/types.cuh"
#include "kernels/hopper/tile_work.cuh"
#include "ptx/math.cuh"

namespace ffpa::hopper {

// The mask of one head, of elements as wide as Bits: u8 (boolean) or u16 (additive, the query's type). Columns are
// dense and rows start on 16 bytes; the route gives other masks to other kernels.
template <class Bits>
struct HeadMask {
  const Bits* first;  // row 0, column 0
  long long row_stride;

  __device__ __forceinline__ HeadMask(const abi::AttentionParams& a, const TileWork& work)
      : first(static_cast<const Bits*>(a.mask) + work.batch * a.mask_stride.batch + work.head * a.mask_stride.head),
        row_stride(a.mask_stride.row) {}

  __device__ __forceinline__ const Bits* at(int row, int column) const { return first + row * row_stride + column; }
};

// Two neighbouring scores of a row. Raw dot products become scale * score + mask; with a boolean mask scores keep their
// units, or become -inf. `pair` holds two elements of the mask, the lower column in its low byte or half.
template <class Element, class Bits>
__device__ __forceinline__ void mask_pair(float& x, float& y, u32 pair, float scale) {
  if constexpr (sizeof(Bits) == 1) {
    x = pair & 0xff ? x : -ptx::infinity();
    y = pair & 0xff00 ? y : -ptx::infinity();
  } else {
    float low, high;
    ptx::unpack2<Element>(pair, low, high);
    x = fmaf(x, scale, low);
    y = fmaf(y, scale, high);
  }
}

}  // namespace ffpa::hopper
