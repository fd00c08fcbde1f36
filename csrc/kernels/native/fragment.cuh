// Where the elements of a warp's S fragment lie: row of the work tile, key.
#pragma once

#include "kernels/native/tile_mma.cuh"

namespace ffpa::native {

template <class T>
struct FragmentPlace {
  int row0;  // row, in the work tile, of element (m, half) = (0, 0)
  int col0;  // key of element (n, j) = (0, 0)

  __device__ explicit FragmentPlace(int key0)
      : row0(Lane<T>::warp_m() * T::kRowsWarp + Lane<T>::g()),
        col0(key0 + Lane<T>::warp_n() * T::kSCols + 2 * Lane<T>::t()) {}

  __device__ int row(int m, int half) const { return row0 + m * 16 + half * 8; }
  __device__ int col(int n) const { return col0 + n * 8; }
};

}  // namespace ffpa::native
