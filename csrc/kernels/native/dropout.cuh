// Dropout of P, after the row sum.
//
// Element e = ((b * H + h) * Nq + q) * Nkv + k takes word e % 4 of Philox counter offset + e / 4 and is kept when
// u = (word >> 8) 2^-24 > p. The decision depends on the element alone: not on tiles, arch or kernel. O is scaled by
// 1 / (1 - p) in the epilogue.
#pragma once

#include "abi/attention_params.h"
#include "core/philox.cuh"
#include "kernels/native/fragment.cuh"

namespace ffpa::native {

template <class T>
class Dropout {
 public:
  __device__ explicit Dropout(const abi::AttentionParams& p) : p_(p) {
    key_ = p.philox_seed != nullptr ? static_cast<u64>(*p.philox_seed) : p.seed_value;
    offset_ = p.philox_offset != nullptr ? static_cast<u64>(*p.philox_offset) + p.offset_value : p.offset_value;
  }

  __device__ __forceinline__ void apply(float (&s)[T::kMTiles][T::kSTiles][4], int key0) const {
    static_assert(T::kSTiles <= 8, "the decisions for 16 rows fit one word");
    const typename T::Work work(p_);
    const FragmentPlace<T> place(key0);
    // word > limit is (word >> 8) 2^-24 > p.
    const u32 limit = static_cast<u32>(p_.drop_p * 16777216.0f) << 8 | 255u;
    const u64 first_row = (static_cast<u64>(work.batch) * p_.heads + work.head) * p_.q_len + work.row0 + place.row0;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
      const u64 row = (first_row + m * 16) * p_.kv_len;
      const u32 keep = p_.kv_len % 4 == 0 ? keep_shared(row, place.col0, limit) : keep_any(row, place.col0, limit);
#pragma unroll
      for (int n = 0; n < T::kSTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if ((keep >> (4 * n + i) & 1) == 0) s[m][n][i] = 0.0f;
        }
      }
    }
  }

 private:
  // Bit 4n + i decides about element i of n-tile n: row + i / 2 * 8, key col + 8n + i % 2. `row` is the index of the
  // row's first element. Here four keys from a multiple of 4 share a counter, and two neighbouring threads hold them for
  // the rows g and g + 8: the even one draws for row g, the odd one for row g + 8, and they exchange halves.
  __device__ __forceinline__ u32 keep_shared(u64 row, int col, u32 limit) const {
    const u32 odd = Lane<T>::index() & 1;
    const u64 counter = offset_ + ((row + (odd ? 8ull * p_.kv_len : 0ull) + (col & ~3)) >> 2);
    u32 own = 0;
    u32 other = 0;  // the bits of the neighbour's two columns, in the place where the neighbour needs them
#pragma unroll
    for (int n = 0; n < T::kSTiles; ++n) {
      const PhiloxWords random = philox(counter + 2 * n, key_);
      const u32 first = (random.word[0] > limit ? 1u : 0u) | (random.word[1] > limit ? 2u : 0u);
      const u32 second = (random.word[2] > limit ? 1u : 0u) | (random.word[3] > limit ? 2u : 0u);
      const u32 shift = 4 * n + 2 * odd;
      own |= (odd ? second : first) << shift;
      other |= (odd ? first : second) << shift;
    }
    return own | __shfl_xor_sync(0xffffffffu, other, 1);
  }

  // Any kv_len: a counter's four elements may lie across threads and rows.
  __device__ __forceinline__ u32 keep_any(u64 row, int col, u32 limit) const {
    u32 keep = 0;
#pragma unroll 1
    for (int pair = 0; pair < 2 * T::kSTiles; ++pair) {
      const u64 element = row + (pair & 1 ? 8ull * p_.kv_len : 0ull) + col + pair / 2 * 8;
      PhiloxWords random = philox(offset_ + (element >> 2), key_);
      const u32 at = element & 3;
      const u32 lo = at == 0 ? random.word[0] : at == 1 ? random.word[1] : at == 2 ? random.word[2] : random.word[3];
      u32 hi = at == 0 ? random.word[1] : at == 1 ? random.word[2] : random.word[3];
      if (at == 3) hi = philox(offset_ + (element >> 2) + 1, key_).word[0];
      keep |= ((lo > limit ? 1u : 0u) | (hi > limit ? 2u : 0u)) << (2 * pair);
    }
    return keep;
  }

  const abi::AttentionParams& p_;
  u64 key_;
  u64 offset_;
};

}  // namespace ffpa::native
