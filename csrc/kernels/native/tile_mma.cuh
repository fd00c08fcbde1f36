// The two products of a step, as warp tiles over swizzled boxes.
//
// WarpLanes holds where a lane's ldmatrix addresses point. The rows it visits are multiples of 8 away from its own, so
// one swizzle pattern serves every address.
#pragma once

#include "core/opaque.cuh"
#include "core/swizzle.cuh"
#include "core/types.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"

namespace ffpa::native {

// Where in a box a lane's 16-byte unit lies.
struct LaneOffset {
  u32 bytes;
  __device__ LaneOffset(u32 row, u32 unit) : bytes(swizzled(row, unit)) {}
  // The unit's address in the box at `box`, `units` further along the row; `units` shares no bit with the unit given to
  // the constructor. Box rows are aligned to their 128 bytes, so the XOR may act on the whole address.
  __device__ u32 at(u32 box, u32 units) const { return (box + bytes) ^ (units << 4); }
};

// A thread's place in the block. Recomputed where it is used: registers are scarcer than these few instructions.
template <class T>
struct Lane {
  static __device__ u32 index() { return opaque(threadIdx.x); }
  static __device__ u32 warp_m() { return index() / 32 / T::kWarpsN; }
  static __device__ u32 warp_n() { return index() / 32 % T::kWarpsN; }
  static __device__ u32 g() { return index() % 32 / 4; }  // row within a fragment
  static __device__ u32 t() { return index() % 4; }       // pair of columns
};

// The lane's ldmatrix addresses, kept in registers.
template <class T>
struct WarpLanes {
  static constexpr bool kWideS = T::kSCols >= 16;
  static constexpr bool kWideV = T::kVCols >= 16;

  LaneOffset a;  // operand A (Q or P), 16 x 16
  LaneOffset k;  // operand B of S: two n-tiles x k16, or one n-tile x k32
  LaneOffset v;  // operand B of O: k16 x two n-tiles, or k32 x one n-tile

  __device__ WarpLanes() : WarpLanes(threadIdx.x % 32, threadIdx.x / 32 / T::kWarpsN, threadIdx.x / 32 % T::kWarpsN) {}

 private:
  __device__ WarpLanes(u32 lane, u32 warp_m, u32 warp_n)
      : a(warp_m * T::kRowsWarp + lane % 16, lane / 16),
        k(warp_n * T::kSCols + lane % 8 + (kWideS ? lane / 16 * 8 : 0), kWideS ? lane / 8 % 2 : lane / 8),
        v(kWideV ? lane % 16 : lane, v_unit(warp_n) + (kWideV ? lane / 16 : 0)) {
    if constexpr (T::kWarpsN > 1) v.bytes += warp_n * T::kVCols / kBoxCols * T::kBoxBytes;
  }

  // First unit, within its box, of the warp's columns of a V step.
  static __device__ u32 v_unit(u32 warp_n) { return T::kWarpsN == 1 ? 0 : warp_n * T::kVCols % kBoxCols / 8; }
};

// Accumulators of kMTiles x kNTiles MMAs. f32: the MMAs add to `c` itself. f16 (kAccF16): they add to a zeroed f16
// partial that `finish` adds to `c`, so that an f16 sum is never longer than the loop between the two.
template <class T, int kNTiles>
struct Accumulator {
  u32 partial[T::kAccF16 ? T::kMTiles : 1][T::kAccF16 ? kNTiles : 1][2];

  __device__ __forceinline__ Accumulator() {
    if constexpr (T::kAccF16) {
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) partial[m][n][0] = partial[m][n][1] = 0;
      }
    }
  }

  // c += a b, where c is tile (m, n) of the accumulators.
  __device__ __forceinline__ void mma(float (&c)[4], int m, int n, const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (T::kAccF16) {
      ptx::mma_f16(partial[m][n], a, b0, b1);
    } else {
      ptx::mma<typename T::Element>(c, a, b0, b1);
    }
  }

  __device__ __forceinline__ void finish(float (&c)[4], int m, int n) {
    if constexpr (T::kAccF16) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float lo, hi;
        ptx::unpack2<fp16>(partial[m][n][half], lo, hi);
        c[2 * half] += lo;
        c[2 * half + 1] += hi;
      }
    }
  }
};

// S += Q[:, step] K[:, step]^T. `q` and `k` are the addresses of the step's first box of each. Portions of `aside`
// (dropout.cuh), work that needs no tensor core, are done between the MMAs, spread over all steps. Returns a
// value that needs the last fragments read from `k`.
template <class T, class Aside>
__device__ __forceinline__ u32 mma_qk(float (&s)[T::kMTiles][T::kSTiles][4], const WarpLanes<T>& lanes, u32 q, u32 k,
                                      int step, Aside& aside) {
  constexpr int kQBox = T::kTileM * kBoxRowBytes;
  constexpr int kGaps = ceil_div(T::kSTiles, 2);  // a contraction step
  const auto fill_gap = [&](int contraction, int gap) {
    const int at = contraction * kGaps + gap;
    aside.draw(at * Aside::kPortions / (kGaps * T::kContractions),
               (at + 1) * Aside::kPortions / (kGaps * T::kContractions));
  };
  u32 last_read = 0;
#pragma unroll
  for (int box = 0; box < T::kStepBoxes; ++box) {
    Accumulator<T, T::kSTiles> sum;
    u32 b[4];
#pragma unroll
    for (int kk = 0; kk < kBoxCols / 16; ++kk) {
      if ((step * T::kStepBoxes + box) * (kBoxCols / 16) + kk >= T::kContractions) break;
      u32 a[T::kMTiles][4];
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
        ptx::ldmatrix_x4(a[m], lanes.a.at(q, 2 * kk) + box * kQBox + m * 16 * kBoxRowBytes);
      }
      if constexpr (WarpLanes<T>::kWideS) {
#pragma unroll
        for (int n = 0; n < T::kSTiles; n += 2) {
          ptx::ldmatrix_x4(b, lanes.k.at(k, 2 * kk) + box * T::kBoxBytes + n * 8 * kBoxRowBytes);
          last_read = n == 0 ? b[0] : last_read | b[0];
#pragma unroll
          for (int m = 0; m < T::kMTiles; ++m) {
            sum.mma(s[m][n], m, n, a[m], b[0], b[1]);
            sum.mma(s[m][n + 1], m, n + 1, a[m], b[2], b[3]);
          }
          fill_gap((step * T::kStepBoxes + box) * (kBoxCols / 16) + kk, n / 2);
        }
      } else {  // one n-tile; a load serves two contraction steps
        if (kk % 2 == 0) ptx::ldmatrix_x4(b, lanes.k.at(k, 2 * kk) + box * T::kBoxBytes);
        last_read = b[0];
#pragma unroll
        for (int m = 0; m < T::kMTiles; ++m) sum.mma(s[m][0], m, 0, a[m], b[kk % 2 * 2], b[kk % 2 * 2 + 1]);
        fill_gap((step * T::kStepBoxes + box) * (kBoxCols / 16) + kk, 0);
      }
    }
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < T::kSTiles; ++n) sum.finish(s[m][n], m, n);
    }
  }
  return last_read;
}

// O[:, step] += P V[:, step]. `v` is the address of the step's first box. Returns a value that needs the last
// fragments read from it.
template <class T>
__device__ __forceinline__ u32 mma_pv(float (&o)[T::kMTiles][T::kOTiles][4], const u32 (&p)[T::kMTiles][T::kKSlices][4],
                                      const WarpLanes<T>& lanes, u32 v, int step) {
  constexpr int kGroup = min_of(T::kVTiles, 4);  // n-tiles in flight: enough independent MMAs, few partials
  u32 last_read = 0;
#pragma unroll
  for (int first = 0; first < T::kVTiles; first += kGroup) {
    Accumulator<T, kGroup> sum;
    u32 b[4];
#pragma unroll
    for (int kk = 0; kk < T::kKSlices; ++kk) {
      const int rows = first / 8 * T::kBoxBytes + kk * 16 * kBoxRowBytes;
      if constexpr (WarpLanes<T>::kWideV) {
#pragma unroll
        for (int n = 0; n < kGroup; n += 2) {
          if (T::kWarpsN == 1 && step * T::kStepCols + (first + n) * 8 >= T::kContractions * 16) break;
          ptx::ldmatrix_x4_trans(b, lanes.v.at(v, (first + n) % 8) + rows);
          if (kk == T::kKSlices - 1) last_read |= b[0];
#pragma unroll
          for (int m = 0; m < T::kMTiles; ++m) {
            sum.mma(o[m][step * T::kVTiles + first + n], m, n, p[m][kk], b[0], b[1]);
            sum.mma(o[m][step * T::kVTiles + first + n + 1], m, n + 1, p[m][kk], b[2], b[3]);
          }
        }
      } else {  // one n-tile; a load serves two contraction steps
        if (kk % 2 == 0) ptx::ldmatrix_x4_trans(b, lanes.v.at(v, 0) + rows);
        last_read = b[0];
#pragma unroll
        for (int m = 0; m < T::kMTiles; ++m) {
          sum.mma(o[m][step], m, 0, p[m][kk], b[kk % 2 * 2], b[kk % 2 * 2 + 1]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kGroup; ++n) sum.finish(o[m][step * T::kVTiles + first + n], m, n);
    }
  }
  return last_read;
}

}  // namespace ffpa::native
