// From raw dot products to the scores that the softmax takes: the scale, and the attention mask tensor if the variant
// has one.
#pragma once

#include "abi/attention_params.h"
#include "core/swizzle.cuh"
#include "kernels/native/fragment.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"

namespace ffpa::native {

// No mask tensor. The scale is folded into the exponent: scores stay raw dot products and `factor` is |scale| log2(e);
// PositionMask applies its sign. The floor keeps -inf * factor = -inf when the scale is 0.
template <class T>
class PlainScores {
 public:
  __device__ PlainScores(const abi::AttentionParams& p, const typename T::Work&, u32)
      : factor_(fmaxf(fabsf(p.scale_log2), 1e-30f)) {}
  __device__ float factor() const { return factor_; }
  __device__ __forceinline__ void start(int) const {}
  __device__ __forceinline__ void apply(float (&)[T::kMTiles][T::kSTiles][4]) const {}

 private:
  float factor_;
};

// A mask tensor: scores are scale * QK^T + mask, and a tile of the mask travels through shared memory, because a
// thread's elements are scattered over rows. The tile is rows of 128 bytes (swizzled boxes) of the mask's own element
// type.
template <class T>
class BiasedScores {
 public:
  __device__ BiasedScores(const abi::AttentionParams& p, const typename T::Work& w, u32 smem)
      : p_(p), tile_(smem + T::kBiasOffset) {
    start(w.kv_begin);
  }

  __device__ float factor() const { return ptx::kLog2e; }

  // Begins the copy of the mask for tile `tile` of keys; the tile before is no longer needed.
  __device__ __forceinline__ void start(int tile) const {
    switch (p_.mask_kind) {
      case abi::MaskKind::boolean:
        if constexpr (T::kBias) copy<u8>(tile);
        break;
      case abi::MaskKind::additive:
        if constexpr (T::kBias) copy<u16>(tile);
        break;
      case abi::MaskKind::additive_f32:
        if constexpr (T::kBiasF32) copy<u32>(tile);
        break;
      case abi::MaskKind::none:
        break;
    }
  }

  __device__ __forceinline__ void apply(float (&s)[T::kMTiles][T::kSTiles][4]) const {
    if constexpr (T::kStages > 2 * T::kSteps) {  // the ring's own waits do not cover the copy
      ptx::cp_async_wait<2 * T::kSteps - 1>();
      ptx::group_sync<T::kThreads>(0);
    }
    const float scale = p_.scale;
    switch (p_.mask_kind) {
      case abi::MaskKind::boolean:
        if constexpr (T::kBias) {
          each_pair<u8>(s, [scale](float& x, float& y, u32 address) {
            const u32 pair = ptx::load_shared_u16(address);
            x = pair & 0xff ? x * scale : -ptx::infinity();
            y = pair >> 8 ? y * scale : -ptx::infinity();
          });
        }
        break;
      case abi::MaskKind::additive:
        if constexpr (T::kBias) {
          each_pair<u16>(s, [scale](float& x, float& y, u32 address) {
            float lo, hi;
            ptx::unpack2<typename T::Element>(ptx::load_shared_u32(address), lo, hi);
            x = fmaf(x, scale, lo);
            y = fmaf(y, scale, hi);
          });
        }
        break;
      case abi::MaskKind::additive_f32:
        if constexpr (T::kBiasF32) {
          each_pair<u32>(s, [scale](float& x, float& y, u32 address) {
            const float2 pair = ptx::load_shared_f32x2(address);
            x = fmaf(x, scale, pair.x);
            y = fmaf(y, scale, pair.y);
          });
        }
        break;
      case abi::MaskKind::none:
        each_pair<u16>(s, [scale](float& x, float& y, u32) {
          x *= scale;
          y *= scale;
        });
        break;
    }
  }

 private:
  template <class Bits>
  static constexpr int kBoxKeys = kBoxRowBytes / sizeof(Bits);

  // Threads copy 16-byte units of a row: by cp.async where every row starts on 16 bytes and columns are dense, else
  // element by element, still in order of address across the threads.
  template <class Bits>
  __device__ __forceinline__ void copy(int tile) const {
    constexpr int kUnitKeys = 16 / sizeof(Bits);
    constexpr int kRowsPass = T::kThreads / 8;
    const typename T::Work work(p_);
    if (tile >= work.kv_tiles) return;
    const u32 thread = opaque(threadIdx.x);
    const int unit = thread % 8;
    const int row0 = thread / 8;
    const Bits* mask = static_cast<const Bits*>(p_.mask) + work.mask_origin(p_);
    const bool whole_units = p_.mask_col_stride == 1 && reinterpret_cast<u64>(mask) % 16 == 0 &&
                             (p_.mask_stride.row | p_.mask_stride.head) % kUnitKeys == 0;
#pragma unroll
    for (int box = 0; box < ceil_div(T::kTileN, kBoxKeys<Bits>); ++box) {
      const int col = box * kBoxKeys<Bits> + unit * kUnitKeys;
      if (col >= T::kTileN) return;
      const int key = tile * T::kTileN + col;
      const int count = max(0, min(p_.kv_len - key, kUnitKeys));
      const u32 target = tile_ + box * (T::kTileM * kBoxRowBytes) + swizzled(row0, unit);  // kRowsPass % 8 == 0
      const Bits* from = mask + key * p_.mask_col_stride;
      if (whole_units) {
#pragma unroll
        for (int pass = 0; pass < ceil_div(T::kTileM, kRowsPass); ++pass) {
          const int row = row0 + pass * kRowsPass;
          if (row < T::kTileM) {
            ptx::cp_async_16_partial(target + pass * (kRowsPass * kBoxRowBytes), from + work.mask_row(p_, row),
                                     work.valid(p_, row) ? count * static_cast<int>(sizeof(Bits)) : 0);
          }
        }
      } else {
#pragma unroll 1
        for (int row = row0; row < T::kTileM; row += kRowsPass) {
          const Bits* at = from + work.mask_row(p_, row);
          u32 words[4] = {0, 0, 0, 0};
#pragma unroll
          for (int i = 0; i < kUnitKeys; ++i) {
            const bool valid = i < count && work.valid(p_, row);
            const u32 x = valid ? static_cast<u32>(at[i * p_.mask_col_stride]) : 0;
            words[i * sizeof(Bits) / 4] |= x << (i * sizeof(Bits) % 4 * 8);
          }
          ptx::store_shared_16(target + (row - row0) * kBoxRowBytes, words);
        }
      }
    }
  }

  // Calls f(x, y, address) for every pair of neighbouring elements; `address` is the mask's pair in shared memory.
  template <class Bits, class F>
  __device__ __forceinline__ void each_pair(float (&s)[T::kMTiles][T::kSTiles][4], F f) const {
    const FragmentPlace<T> place(0);
    const u32 g = Lane<T>::g();
#pragma unroll
    for (int n = 0; n < T::kSTiles; ++n) {
      const u32 byte = place.col(n) * sizeof(Bits);
      const u32 at = tile_ + byte / kBoxRowBytes * (T::kTileM * kBoxRowBytes) + byte % 16 +
                     ((byte % kBoxRowBytes / 16 ^ g) << 4) + place.row0 * kBoxRowBytes;
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
        f(s[m][n][0], s[m][n][1], at + m * 16 * kBoxRowBytes);
        f(s[m][n][2], s[m][n][3], at + (m * 16 + 8) * kBoxRowBytes);
      }
    }
  }

  const abi::AttentionParams& p_;
  u32 tile_;
};

template <class T, bool kBiased>
struct SelectScores {
  using Type = PlainScores<T>;
};
template <class T>
struct SelectScores<T, true> {
  using Type = BiasedScores<T>;
};
template <class T>
using Scores = typename SelectScores<T, T::kAnyBias>::Type;

}  // namespace ffpa::native
