// Dropout of P, after the row sum.
//
// Element e = ((b * H + h) * Nq + q) * Nkv + k takes word e % 4 of Philox counter offset + e / 4 and is kept when
// u = (word >> 8) 2^-24 > p. The decision depends on the element alone: not on tiles, arch or kernel. O is scaled by 1
// / (1 - p) in the epilogue.
//
// Random numbers are integer work, and the tensor cores wait for none of it: a tile's decisions are drawn in small
// portions between the MMAs of Q K^T.
#pragma once

#include "abi/attention_params.h"
#include "core/philox.cuh"
#include "kernels/native/fragment.cuh"
#include "ptx/math.cuh"

namespace ffpa::native {

// The decisions for a tile of P, one bit an element: of n-tile n, element i (row g + 8 (i / 2), key 2t + i % 2) has bit
// 8 i + 7 - n, so that `word << n` puts it at the sign of byte i.
template <class T>
struct KeepBits {
  u32 word[T::kMTiles];

  // Two bytes of ones for an element that is kept, two of zeros for one that is not.
  __device__ __forceinline__ u32 pair(int m, int n, int half) const {
    return ptx::byte_signs(word[m] << n, half == 0 ? 0x9988 : 0xbbaa);
  }
};

// No dropout.
struct KeepAll {
  __device__ __forceinline__ u32 pair(int, int, int) const { return 0xffffffffu; }
};

// The decisions of a block. Where kv_len is a multiple of 4, four neighbouring keys share a counter, and two
// neighbouring threads hold them for the rows g and g + 8: the even thread draws for row g, the odd one for row g + 8,
// and they exchange halves.
template <class T>
class Dropout {
 public:
  __device__ Dropout(const abi::AttentionParams& p, const typename T::Work& work)
      : p_(p),
        key_(p.philox_seed != nullptr ? static_cast<u64>(*p.philox_seed) : p.seed_value),
        counter_(offset() +
                 ((row(work, FragmentPlace<T>(0).row0 + (odd() ? 8 : 0)) + (FragmentPlace<T>(0).col0 & ~3)) >> 2)),
        threshold_(~(static_cast<u32>(p.drop_p * 16777216.0f) << 8 | 255u)) {}

  // A tile's decisions while they are drawn.
  class Draw {
    static constexpr int kCounters = T::kMTiles * T::kSTiles;
    // Where a warp has few keys it has much of O, and few registers for anything else.
    static constexpr int kSideBySide = T::kSTiles == 8 ? 8 : min_of(kCounters, 4);
    static constexpr int kRunPortions = PhiloxRun<kSideBySide>::kStages + 1;  // the last one compares

   public:
    static constexpr int kPortions = kCounters / kSideBySide * kRunPortions;

    __device__ __forceinline__ Draw(const Dropout& dropout, int key0) : dropout_(dropout), key0_(key0) {
      counter_ = dropout.counter_ + (key0 >> 2);
      constexpr int kSpan = 2 * (T::kSTiles - 1);
      regular_ =
          dropout.p_.kv_len % 4 == 0 &&
          __all_sync(0xffffffffu,
                     (counter_ & 0xffffffffu) + 4ull * (T::kMTiles - 1) * dropout.p_.kv_len + kSpan <= 0xffffffffu);
    }

    // Portions `first` .. `end` - 1; in order, each once.
    __device__ __forceinline__ void draw(int first, int end) {
#pragma unroll
      for (int portion = first; portion < end; ++portion) {
        const int counter0 = portion / kRunPortions * kSideBySide;
        const int stage = portion % kRunPortions;
        if (stage == 0) {
          run_.template start<T::kSTiles>(
              [&](int i) {
                return static_cast<u32>(counter_) + (counter0 + i) / T::kSTiles * 4 * dropout_.p_.kv_len +
                       (counter0 + i) % T::kSTiles * 2;
              },
              static_cast<u32>(counter_ >> 32), 2, dropout_.key_);
        } else if (stage < kRunPortions - 1) {
          run_.advance();
        } else {
          compare(counter0);
        }
      }
    }

    // After all portions.
    __device__ __forceinline__ KeepBits<T> finish() const {
      KeepBits<T> keep;
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) keep.word[m] = exchange(drawn_[m]);
      if (!regular_) {
#pragma unroll
        for (int m = 0; m < T::kMTiles; ++m) keep.word[m] = dropout_.any_counters(m, key0_);
      }
      return keep;
    }

   private:
    // drawn_[m] gets bit 8 j + 7 - n for word j of counter (m, n).
    __device__ __forceinline__ void compare(int counter0) {
#pragma unroll
      for (int i0 = 0; i0 < kSideBySide; i0 += T::kSTiles) {
        u32 bits[4] = {0, 0, 0, 0};
#pragma unroll
        for (int n = 0; n < T::kSTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) append_carry(bits[j], run_.word[i0 + n][j], dropout_.threshold_);
        }
        constexpr int kShift = 8 - T::kSTiles;
        drawn_[(counter0 + i0) / T::kSTiles] =
            (bits[0] << kShift) + (bits[1] << (8 + kShift)) + (bits[2] << (16 + kShift)) + (bits[3] << (24 + kShift));
      }
    }

    static __device__ __forceinline__ u32 exchange(u32 drawn) {
      const u32 theirs = __shfl_xor_sync(0xffffffffu, odd() ? drawn << 16 : drawn >> 16, 1);
      return odd() ? drawn & 0xffff0000u | theirs & 0x0000ffffu : drawn & 0x0000ffffu | theirs & 0xffff0000u;
    }

    const Dropout& dropout_;
    int key0_;
    u64 counter_;   // of the first element that the thread draws for
    bool regular_;  // else what is drawn is of no use, and `finish` draws anew
    PhiloxRun<kSideBySide> run_;
    u32 drawn_[T::kMTiles];
  };

  __device__ __forceinline__ Draw begin(int key0) const { return Draw(*this, key0); }

 private:
  static __device__ bool odd() { return Lane<T>::index() % 2 == 1; }

  static_assert(T::kSTiles <= 8, "the decisions for 16 rows fit one word");

  // bits = 2 bits + (word + threshold >= 2^32).
  static __device__ __forceinline__ void append_carry(u32& bits, u32 word, u32 threshold) {
    asm("{\n"
        ".reg .u32 sum;\n"
        "add.cc.u32 sum, %1, %2;\n"
        "addc.u32 %0, %0, %0;\n"
        "}\n"
        : "+r"(bits)
        : "r"(word), "r"(threshold));
  }

  // Index of the first element of a row of the work tile.
  __device__ __forceinline__ u64 row(const typename T::Work& work, int r) const {
    return ((static_cast<u64>(work.batch) * p_.heads + work.head) * p_.q_len + work.row0 + r) * p_.kv_len;
  }

  __device__ u64 offset() const {
    return p_.philox_offset != nullptr ? static_cast<u64>(*p_.philox_offset) + p_.offset_value : p_.offset_value;
  }

  // Any kv_len: the four elements of a counter may lie across threads and rows.
  __device__ __forceinline__ u32 any_counters(int m, int key0) const {
    const typename T::Work work(p_);
    const FragmentPlace<T> place(key0);
    u32 keep = 0;
#pragma unroll 1
    for (int at = 0; at < 2 * T::kSTiles; ++at) {
      const int n = at / 2;
      const int half = at % 2;
      const u64 element = row(work, place.row(m, half)) + place.col(n);
      const u32 first = element & 3;
      u32 word[4];
      u32 next[4];
      philox(word, offset() + (element >> 2), key_);
      philox(next, offset() + (element >> 2) + 1, key_);
      const u32 lo = first == 0 ? word[0] : first == 1 ? word[1] : first == 2 ? word[2] : word[3];
      const u32 hi = first == 0 ? word[1] : first == 1 ? word[2] : first == 2 ? word[3] : next[0];
      keep |= ((lo > ~threshold_ ? 1u : 0u) | (hi > ~threshold_ ? 256u : 0u)) << (16 * half + 7 - n);
    }
    return keep;
  }

  const abi::AttentionParams& p_;
  PhiloxKey key_;
  u64 counter_;    // of the first element that the thread draws for, in the first tile of keys
  u32 threshold_;  // word + threshold overflows where (word >> 8) 2^-24 > p
};

// The same without dropout: nothing is drawn.
template <class T>
class NoDropout {
 public:
  __device__ NoDropout(const abi::AttentionParams&, const typename T::Work&) {}
  struct Draw {
    static constexpr int kPortions = 0;
    __device__ __forceinline__ void draw(int, int) const {}
    __device__ __forceinline__ KeepAll finish() const { return {}; }
  };
  __device__ __forceinline__ Draw begin(int) const { return {}; }
};

template <class T, bool kDropout>
struct SelectDropout {
  using Type = NoDropout<T>;
};
template <class T>
struct SelectDropout<T, true> {
  using Type = Dropout<T>;
};
template <class T>
using DropoutOf = typename SelectDropout<T, T::kDropout>::Type;

}  // namespace ffpa::native
