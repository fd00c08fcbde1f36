// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include "core/opaque.cuh"
#include "core/types.cuh"

namespace ffpa {

// Calls f(i, words) for i < kCount with the four random words of the 64-bit counter `counter + i * step` (words 2 and 3
// of the counter are zero) under the 64-bit key `key`. The counters go through the rounds side by side, which makes one
// key schedule serve all.
template <int kCount, class F>
__device__ __forceinline__ void philox_each(u64 counter, u32 step, u64 key, F f) {
  u32 c[kCount][4];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const u64 own = counter + static_cast<u64>(i * step);
    c[i][0] = static_cast<u32>(own);
    c[i][1] = static_cast<u32>(own >> 32);
    c[i][2] = c[i][3] = 0;
  }
  u32 k0 = static_cast<u32>(key);
  u32 k1 = static_cast<u32>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const u64 a = static_cast<u64>(0xD2511F53u) * c[i][0];
      const u64 b = static_cast<u64>(0xCD9E8D57u) * c[i][2];
      c[i][0] = static_cast<u32>(b >> 32) ^ c[i][1] ^ k0;
      c[i][1] = static_cast<u32>(b);
      c[i][2] = static_cast<u32>(a >> 32) ^ c[i][3] ^ k1;
      c[i][3] = static_cast<u32>(a);
    }
    k0 = opaque(k0 + 0x9E3779B9u);  // else the sums of all rounds are formed anew for every counter
    k1 = opaque(k1 + 0xBB67AE85u);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) f(i, c[i]);
}

}  // namespace ffpa
