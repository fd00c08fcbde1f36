// From raw dot products to scores: the scale, its sign, and an attention mask.
#pragma once

#include "abi/attention_params.h"
#include "kernels/native/work_tile.cuh"
#include "ptx/math.cuh"

namespace ffpa::native {

// Without a mask the scale is folded into the exponent: scores stay raw dot products and `factor` is |scale| log2(e);
// PositionMask applies its sign. The floor keeps -inf * factor = -inf when the scale is 0.
template <class T>
class Scores {
 public:
  __device__ Scores(const abi::AttentionParams& p, const WorkTile&)
      : factor_(fmaxf(fabsf(p.scale_log2), 1e-30f)) {}

  __device__ float factor() const { return factor_; }
  __device__ __forceinline__ void apply(float (&)[T::kMTiles][T::kSTiles][4], int) const {}

 private:
  float factor_;
};

}  // namespace ffpa::native
