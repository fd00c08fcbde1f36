// Online softmax of the rows that a thread holds: fragment rows g and g + 8 of each of its kMTiles MMA tiles.
//
// Scores x are in units in which exp2(factor * x) is the softmax numerator. The row maximum is moved only when it grows
// by more than kSlack octaves: P then reaches at most 2^kSlack, exactly compensated by the row sum, and most tiles
// leave O unscaled.
#pragma once

#include "core/types.cuh"
#include "kernels/native/tile_mma.cuh"
#include "ptx/barrier.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Shared floats [warps_n][tile_m] in which the warps that share rows combine a value a row.
template <class T>
struct RowExchange {
  u32 base;

  template <class Combine>
  __device__ __forceinline__ void run(float (&x)[T::kMTiles][2], Combine combine) const {
    if constexpr (T::kWarpsN > 1) {
      const u32 warp_m = Lane<T>::warp_m();
      const u32 all = base + 4 * (warp_m * T::kRowsWarp + Lane<T>::g());
      const u32 own = all + 4 * Lane<T>::warp_n() * T::kTileM;
      const bool writes = Lane<T>::t() == 0;
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (writes) ptx::store_shared(own + 4 * (m * 16 + half * 8), x[m][half]);
        }
      }
      ptx::group_sync<T::kGroupThreads>(1 + warp_m);
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 from = all + 4 * (m * 16 + half * 8);
          x[m][half] = ptx::load_shared_f32(from);
#pragma unroll
          for (int w = 1; w < T::kWarpsN; ++w) {
            x[m][half] = combine(x[m][half], ptx::load_shared_f32(from + 4 * w * T::kTileM));
          }
        }
      }
    }
  }
};

template <class T>
class OnlineSoftmax {
 public:
  // P is at most 2^kSlack. f16 partial sums of P V must stay below 65504, so they get no slack.
  static constexpr float kSlack = T::kAccF16 ? 0.0f : 8.0f;

  __device__ explicit OnlineSoftmax(float factor) : factor_(factor) {
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
      max_[m][0] = max_[m][1] = -ptx::infinity();
      sum_[m][0] = sum_[m][1] = 0.0f;
    }
  }

  // Turns a tile of scores into numerators P and rescales O to the same maximum.
  __device__ __forceinline__ void step(float (&s)[T::kMTiles][T::kSTiles][4], float (&o)[T::kMTiles][T::kOTiles][4],
                                       const RowExchange<T>& exchange) {
    float top[T::kMTiles][2];
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = s[m][0][2 * half];
#pragma unroll
        for (int n = 0; n < T::kSTiles; ++n) x = fmaxf(x, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        top[m][half] = quad_max(x);
      }
    }
    exchange.run(top, [](float a, float b) { return fmaxf(a, b); });

    bool shifted = false;
    if constexpr (T::kAnyBias) shifted = shift_huge(s, top);

    float shrink[T::kMTiles][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = max_[m][half];
        const bool moves = outgrows(top[m][half], before);
        const float now = moves ? top[m][half] : before;
        shrink[m][half] = moves ? ptx::ex2((before - now) * factor_) : 1.0f;
        max_[m][half] = now;
        sum_[m][half] *= shrink[m][half];
        moved |= moves;
        const float origin = now == -ptx::infinity() || shifted ? 0.0f : now;
        const float offset = -origin * factor_;
#pragma unroll
        for (int n = 0; n < T::kSTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& x = s[m][n][2 * half + j];
            x = ptx::ex2(fmaf(x, factor_, offset));
            sum_[m][half] += x;
          }
        }
      }
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
        for (int n = 0; n < T::kOTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[m][n][i] *= shrink[m][i / 2];
        }
      }
    }
  }

  // Completes the row sums over the threads that share a row; call once, after the last step.
  __device__ __forceinline__ void finish(const RowExchange<T>& exchange) {
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum_[m][half] = quad_sum(sum_[m][half]);
    }
    exchange.run(sum_, [](float a, float b) { return a + b; });
  }

  // What O is multiplied with: 0 for a row that attends to no key.
  __device__ float inverse_sum(int m, int half) const { return sum_[m][half] == 0.0f ? 0.0f : ptx::rcp(sum_[m][half]); }

  // Maximum of the row's scores that its sum refers to, scaled; -inf for a row that attends to no key.
  __device__ float maximum(int m, int half) const { return max_[m][half] * (factor_ * ptx::kLn2); }
  // Sum of exp(score - maximum).
  __device__ float sum(int m, int half) const { return sum_[m][half]; }

  // Natural logarithm of the sum of exp(score); -inf for a row that attends to no key.
  __device__ float lse(int m, int half) const {
    return sum_[m][half] == 0.0f ? -ptx::infinity() : maximum(m, half) + ptx::lg2(sum_[m][half]) * ptx::kLn2;
  }

 private:
  // False also for -inf - -inf = NaN: a row with no key yet stays at -inf.
  __device__ __forceinline__ bool outgrows(float top, float maximum) const {
    return (top - maximum) * factor_ > kSlack;
  }

  // A mask of the type's lowest number: the product of a score with `factor` would overflow, so the maximum is
  // subtracted first. True where that has been done, for all rows of the warp.
  __device__ __forceinline__ bool shift_huge(float (&s)[T::kMTiles][T::kSTiles][4],
                                             const float (&top)[T::kMTiles][2]) const {
    float least = 0.0f;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) least = fminf(least, fminf(origin(top, m, 0), origin(top, m, 1)));
    if (!__any_sync(0xffffffffu, least < -1e38f)) return false;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < T::kSTiles; ++n) {
          s[m][n][2 * half] -= origin(top, m, half);
          s[m][n][2 * half + 1] -= origin(top, m, half);
        }
      }
    }
    return true;
  }

  // What a row's scores are taken relative to once `top` has been seen.
  __device__ __forceinline__ float origin(const float (&top)[T::kMTiles][2], int m, int half) const {
    const float now = outgrows(top[m][half], max_[m][half]) ? top[m][half] : max_[m][half];
    return now == -ptx::infinity() ? 0.0f : now;
  }

  float factor_;
  float max_[T::kMTiles][2];
  float sum_[T::kMTiles][2];
};

}  // namespace ffpa::native
