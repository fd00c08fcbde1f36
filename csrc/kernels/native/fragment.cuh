// Where the elements of a warp's S fragment lie in the S of its head.
#pragma once

#include "kernels/native/tile_mma.cuh"

namespace ffpa::native {

template <class T>
struct FragmentPlace {
  int row0;  // query row of element (m, half) = (0, 0)
  int col0;  // key of element (n, j) = (0, 0) in a tile that starts at key 0

  __device__ FragmentPlace(const WarpLanes<T>& lanes, int tile_row0)
      : row0(tile_row0 + lanes.warp_m * T::kRowsWarp + lanes.g), col0(lanes.warp_n * T::kSCols + 2 * lanes.t) {}

  __device__ int row(int m, int half) const { return row0 + m * 16 + half * 8; }
  __device__ int col(int key0, int n) const { return key0 + col0 + n * 8; }
};

}  // namespace ffpa::native
