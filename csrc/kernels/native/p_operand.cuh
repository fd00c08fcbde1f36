// P as operand A of the second product: rounded to the element type and held in registers for all keys of the tile.
#pragma once

#include "kernels/native/tile_mma.cuh"
#include "ptx/barrier.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

// One warp along N: the accumulator layout of S is the operand layout of P. More: every warp has some keys of P and
// needs all of them, so P passes through shared memory, boxes of [kTileM][64 keys].
// An element of P that `keep` drops becomes 0.
template <class T, class Keep>
__device__ __forceinline__ void make_p_operand(u32 (&p)[T::kMTiles][T::kKSlices][4],
                                               const float (&s)[T::kMTiles][T::kSTiles][4], const WarpLanes<T>& lanes,
                                               u32 p_boxes, const Keep& keep) {
  using Element = typename T::Element;
  if constexpr (T::kWarpsN == 1) {
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int kk = 0; kk < T::kKSlices; ++kk) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * kk + i / 2;
          const int half = i % 2;
          p[m][kk][i] = ptx::pack2<Element>(s[m][n][2 * half], s[m][n][2 * half + 1]) & keep.pair(m, n, half);
        }
      }
    }
  } else {
    constexpr int kPBox = T::kTileM * kBoxRowBytes;
    static_assert(T::kSCols <= kBoxCols);
    const u32 warp_m = Lane<T>::warp_m();
    const u32 col = Lane<T>::warp_n() * T::kSCols;
    const u32 row = warp_m * T::kRowsWarp + Lane<T>::g();
    const u32 in_unit = 4 * Lane<T>::t();
    const LaneOffset to(row, col % kBoxCols / 8);
    const u32 target = p_boxes + col / kBoxCols * kPBox;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < T::kSTiles; ++n) {
        const u32 address = to.at(target, n) + m * 16 * kBoxRowBytes + in_unit;
        ptx::store_shared(address, ptx::pack2<Element>(s[m][n][0], s[m][n][1]) & keep.pair(m, n, 0));
        ptx::store_shared(address + 8 * kBoxRowBytes, ptx::pack2<Element>(s[m][n][2], s[m][n][3]) & keep.pair(m, n, 1));
      }
    }
    ptx::group_sync<T::kGroupThreads>(1 + warp_m);
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int kk = 0; kk < T::kKSlices; ++kk) {
        ptx::ldmatrix_x4(p[m][kk], lanes.a.at(p_boxes, kk % 4 * 2) + kk / 4 * kPBox + m * 16 * kBoxRowBytes);
      }
    }
  }
}

}  // namespace ffpa::native
