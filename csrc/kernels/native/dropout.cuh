// Dropout of P, after the row sum.
//
// Element e = ((b * H + h) * Nq + q) * Nkv + k takes word e % 4 of Philox counter offset + e / 4 and is kept when
// u = (word >> 8) 2^-24 > p. The decision depends on the element alone: not on tiles, arch or kernel. O is scaled by 1
// / (1 - p) in the epilogue.
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

template <class T>
class Dropout {
 public:
  __device__ explicit Dropout(const abi::AttentionParams& p) : p_(p) {}

  __device__ __forceinline__ KeepBits<T> decide(int key0) const {
    static_assert(T::kSTiles <= 8, "the decisions for 16 rows fit one word");
    const u64 key = p_.philox_seed != nullptr ? static_cast<u64>(*p_.philox_seed) : p_.seed_value;
    const u64 offset =
        p_.philox_offset != nullptr ? static_cast<u64>(*p_.philox_offset) + p_.offset_value : p_.offset_value;
    const typename T::Work work(p_);
    const FragmentPlace<T> place(key0);
    // word > limit is (word >> 8) 2^-24 > p.
    const u32 limit = static_cast<u32>(p_.drop_p * 16777216.0f) << 8 | 255u;
    const u64 first_row = (static_cast<u64>(work.batch) * p_.heads + work.head) * p_.q_len + work.row0 + place.row0;
    KeepBits<T> keep;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
      const u64 row = (first_row + m * 16) * p_.kv_len;
      keep.word[m] = p_.kv_len % 4 == 0 ? shared_counters(row, place.col0, limit, key, offset)
                                        : any_counters(row, place.col0, limit, key, offset);
    }
    return keep;
  }

 private:
  // `row` is the index of the first element of row g. kv_len is a multiple of 4: four keys share a counter, and two
  // neighbouring threads hold them for the rows g and g + 8. The even thread draws for row g, the odd one for row g +
  // 8, and they exchange halves.
  __device__ __forceinline__ u32 shared_counters(u64 row, int col, u32 limit, u64 key, u64 offset) const {
    const bool odd = Lane<T>::index() % 2 == 1;
    const u64 counter = offset + ((row + (odd ? 8ull * p_.kv_len : 0ull) + (col & ~3)) >> 2);
    u32 drawn = 0;  // bit 8 j + 7 - n for word j
    philox_each<T::kSTiles>(counter, 2, key, [&](int n, const u32(&word)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (word[j] > limit) drawn |= 1u << (8 * j + 7 - n);
      }
    });
    const u32 theirs = __shfl_xor_sync(0xffffffffu, odd ? drawn << 16 : drawn >> 16, 1);
    return odd ? drawn & 0xffff0000u | theirs & 0x0000ffffu : drawn & 0x0000ffffu | theirs & 0xffff0000u;
  }

  // Any kv_len: the four elements of a counter may lie across threads and rows.
  __device__ __forceinline__ u32 any_counters(u64 row, int col, u32 limit, u64 key, u64 offset) const {
    u32 keep = 0;
#pragma unroll 1
    for (int pair = 0; pair < 2 * T::kSTiles; ++pair) {
      const int n = pair / 2;
      const int half = pair % 2;
      const u64 element = row + (half ? 8ull * p_.kv_len : 0ull) + col + n * 8;
      const u32 at = element & 3;
      u32 lo = 0;
      u32 hi = 0;
      philox_each<2>(offset + (element >> 2), 1, key, [&](int next, const u32(&word)[4]) {
        if (next == 0) {
          lo = at == 0 ? word[0] : at == 1 ? word[1] : at == 2 ? word[2] : word[3];
          hi = at == 0 ? word[1] : at == 1 ? word[2] : word[3];
        } else if (at == 3) {
          hi = word[0];
        }
      });
      keep |= ((lo > limit ? 1u : 0u) | (hi > limit ? 256u : 0u)) << (16 * half + 7 - n);
    }
    return keep;
  }

  const abi::AttentionParams& p_;
};

}  // namespace ffpa::native
