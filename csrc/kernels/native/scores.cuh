// From raw dot products to the scores that the softmax takes: the scale, and the attention mask tensor if the variant
// has one.
#pragma once

#include "abi/attention_params.h"
#include "core/swizzle.cuh"
#include "kernels/native/fragment.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
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

// A mask tensor. An additive one: scores are scale * QK^T + mask. A boolean one: scores are raw dot products as without
// a mask, and -inf where the mask is false.
//
// A thread's elements are scattered over rows, so a tile of the mask travels through shared memory: rows of 128 bytes
// (swizzled boxes) of the mask's own element type. Every warp copies what it reads itself, and so waits for no other.
template <class T>
class BiasedScores {
 public:
  __device__ BiasedScores(const abi::AttentionParams& p, const typename T::Work& w, u32 smem)
      : p_(p), work_(w), tile_(smem + T::kBiasOffset) {
    const int size = T::kBiasF32 ? 4 : p.mask_kind == abi::MaskKind::boolean ? 1 : 2;
    origin_ = static_cast<const char*>(p.mask) + work_.mask_origin(p) * size;
    // Whether a warp's part of a row is whole units: as many as fit 16 bytes, or all of its keys.
    const int unit = min(16, T::kSCols * size);
    whole_units_ = p.mask_col_stride == 1 &&
                   (reinterpret_cast<u64>(origin_) | p.mask_stride.row * size | p.mask_stride.head * size) % unit == 0;
    start(w.kv_begin);
  }

  __device__ float factor() const { return T::raw_scores(p_) ? fmaxf(fabsf(p_.scale_log2), 1e-30f) : ptx::kLog2e; }

  // Begins the copy of the mask for tile `tile` of keys; the warp no longer needs the tile before.
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

  // The copy of this tile's mask has arrived, the lane's part of it.
  __device__ __forceinline__ void apply(float (&s)[T::kMTiles][T::kSTiles][4]) const {
    __syncwarp();
    const float scale = p_.scale;
    switch (p_.mask_kind) {
      case abi::MaskKind::boolean:
        if constexpr (T::kBias) {
          const float masked = T::turns(p_) ? ptx::infinity() : -ptx::infinity();  // PositionMask is yet to turn it
          each_pair<u8>(s, [masked](float& x, float& y, u32 address) {
            const u32 pair = ptx::load_shared_u16(address);
            x = pair & 0x00ff ? x : masked;
            y = pair & 0xff00 ? y : masked;
          });
        }
        break;
      case abi::MaskKind::additive:
        if constexpr (T::kBias) {
          if (T::Work::one_mask_row(p_)) {
            add_16bit<true>(s, scale);
          } else {
            add_16bit<false>(s, scale);
          }
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
        break;
    }
    __syncwarp();
  }

 private:
  // A warp's part of the tile, in units of up to 16 bytes: a lane copies the same unit of every kRowsPass-th row. Of a
  // mask that is the same for all rows, the first of the warp's rows is enough.
  template <class Bits>
  __device__ __forceinline__ void copy(int tile) const {
    constexpr int kUnitBytes = min_of(16, T::kSCols * static_cast<int>(sizeof(Bits)));
    constexpr int kUnitKeys = kUnitBytes / sizeof(Bits);
    constexpr int kRowUnits = T::kSCols / kUnitKeys;
    constexpr int kRowsPass = 32 / kRowUnits;
    if (tile >= work_.kv_tiles) return;
    const u32 lane = Lane<T>::index() % 32;
    const u32 row0 = Lane<T>::warp_m() * T::kRowsWarp + lane / kRowUnits;
    const u32 col = Lane<T>::warp_n() * T::kSCols + lane % kRowUnits * kUnitKeys;
    const int key = tile * T::kTileN + col;
    const u32 byte = col * sizeof(Bits);
    const u32 target =
        tile_ + byte / kBoxRowBytes * (T::kTileM * kBoxRowBytes) + swizzled(row0, byte % kBoxRowBytes / 16) + byte % 16;
    // Rows of a pass differ from row0 in other bits than those that row0 has: the swizzle is an XOR of the two.
    const auto target_of = [&](int row) { return (target ^ ((row & 7) << 4)) + row * kBoxRowBytes; };
    const Bits* first = reinterpret_cast<const Bits*>(origin_) + work_.mask_row(p_, row0);
    const int rows = T::Work::one_mask_row(p_) ? 1 : T::kRowsWarp;
    if (lane / kRowUnits >= rows) return;
    if (whole_units_ && (tile + 1) * T::kTileN <= p_.kv_len && work_.valid(p_, T::kTileM - 1)) {
#pragma unroll
      for (int row = 0; row < T::kRowsWarp; row += kRowsPass) {
        if (row >= rows) break;
        ptx::cp_async<kUnitBytes>(target_of(row), first + key + work_.mask_rows(p_, row0, row));
      }
      return;
    }
    first += key * p_.mask_col_stride;
    const int count = max(0, min(p_.kv_len - key, kUnitKeys));
#pragma unroll 1
    for (int row = 0; row < rows; row += kRowsPass) {
      const Bits* from = first + work_.mask_rows(p_, row0, row);
      const int valid = work_.valid(p_, row0 + row) ? count : 0;
      if (whole_units_) {
        ptx::cp_async_partial<kUnitBytes>(target_of(row), from, valid * static_cast<int>(sizeof(Bits)));
      } else {
        u32 words[kUnitBytes / 4] = {};
#pragma unroll
        for (int i = 0; i < kUnitKeys; ++i) {
          const u32 x = i < valid ? static_cast<u32>(from[i * p_.mask_col_stride]) : 0;
          words[i * sizeof(Bits) / 4] |= x << (i * sizeof(Bits) % 4 * 8);
        }
#pragma unroll
        for (int i = 0; i < kUnitBytes / 4; ++i) ptx::store_shared(target_of(row) + 4 * i, words[i]);
      }
    }
  }

  // Two or four 8 x 8 blocks of 16-bit elements at once, as an operand A is read: a lane gets the pairs of its own
  // elements.
  template <bool kOneRow>
  __device__ __forceinline__ void add_16bit(float (&s)[T::kMTiles][T::kSTiles][4], float scale) const {
    using Element = typename T::Element;
    constexpr int kRowBytes = kOneRow ? 0 : kBoxRowBytes;
    const auto add = [scale](float (&x)[4], u32 upper, u32 lower) {
      float mask[4];
      ptx::unpack2<Element>(upper, mask[0], mask[1]);
      ptx::unpack2<Element>(lower, mask[2], mask[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = fmaf(x[i], scale, mask[i]);
    };
    const u32 lane = Lane<T>::index() % 32;
    const u32 col = Lane<T>::warp_n() * T::kSCols;
    const u32 boxes = tile_ + col / kBoxCols * (T::kTileM * kBoxRowBytes);
    const u32 row = Lane<T>::warp_m() * T::kRowsWarp + (kOneRow ? 0 : lane % 16);
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
      if constexpr (T::kSTiles >= 2) {
        const LaneOffset place(row, col % kBoxCols / 8 + lane / 16);
#pragma unroll
        for (int n = 0; n < T::kSTiles; n += 2) {
          u32 x[4];
          ptx::ldmatrix_x4(x, place.at(boxes, n) + m * 16 * kRowBytes);
          add(s[m][n], x[0], x[1]);
          add(s[m][n + 1], x[2], x[3]);
        }
      } else {
        u32 x[2];
        ptx::ldmatrix_x2(x, LaneOffset(row, col % kBoxCols / 8).at(boxes, 0) + m * 16 * kRowBytes);
        add(s[m][0], x[0], x[1]);
      }
    }
  }

  // Calls f(x, y, address) for every pair of neighbouring elements; `address` is the mask's pair in shared memory.
  template <class Bits, class F>
  __device__ __forceinline__ void each_pair(float (&s)[T::kMTiles][T::kSTiles][4], F f) const {
    if (T::Work::one_mask_row(p_)) {
      each_pair<Bits, true>(s, f);
    } else {
      each_pair<Bits, false>(s, f);
    }
  }

  template <class Bits, bool kOneRow, class F>
  __device__ __forceinline__ void each_pair(float (&s)[T::kMTiles][T::kSTiles][4], F f) const {
    constexpr int kRowBytes = kOneRow ? 0 : kBoxRowBytes;
    const FragmentPlace<T> place(0);
    const u32 g = kOneRow ? 0 : Lane<T>::g();
    const u32 rows = tile_ + (Lane<T>::warp_m() * T::kRowsWarp + g) * kBoxRowBytes;
#pragma unroll
    for (int n = 0; n < T::kSTiles; ++n) {
      const u32 byte = place.col(n) * sizeof(Bits);
      const u32 at =
          rows + byte / kBoxRowBytes * (T::kTileM * kBoxRowBytes) + byte % 16 + ((byte % kBoxRowBytes / 16 ^ g) << 4);
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
        f(s[m][n][0], s[m][n][1], at + m * 16 * kRowBytes);
        f(s[m][n][2], s[m][n][3], at + (m * 16 + 8) * kRowBytes);
      }
    }
  }

  const abi::AttentionParams& p_;
  typename T::Work work_;
  const char* origin_;  // of the work tile's first row
  bool whole_units_;
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
