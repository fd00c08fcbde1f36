// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). Words 2 and 3 of every counter
// are zero.
#pragma once

#include "core/opaque.cuh"
#include "core/types.cuh"

namespace ffpa {

inline constexpr u32 kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr u32 kPhiloxMultiplier1 = 0xCD9E8D57u;

// a ^ b ^ c in one instruction; the compiler's own order of the three makes it two.
__device__ __forceinline__ u32 xor3(u32 a, u32 b, u32 c) {
  u32 x;
  asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
  return x;
}

// a * b + c in one instruction, whatever the compiler knows of `a`.
__device__ __forceinline__ u64 multiply_add(u32 a, u32 b, u64 c) {
  u64 x;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(x) : "r"(a), "r"(b), "l"(c));
  return x;
}

// The 64-bit key; every round adds a constant to each of its halves.
struct PhiloxKey {
  u32 half[2];

  __device__ explicit PhiloxKey(u64 key) : half{static_cast<u32>(key), static_cast<u32>(key >> 32)} {}
  __device__ __forceinline__ void next_round() {
    half[0] = opaque(half[0] + 0x9E3779B9u);  // else the sums of all rounds are formed anew for every counter
    half[1] = opaque(half[1] + 0xBB67AE85u);
  }
};

__device__ __forceinline__ void philox_round(u32 (&c)[4], const PhiloxKey& key) {
  const u64 a = static_cast<u64>(kPhiloxMultiplier0) * c[0];
  const u64 b = static_cast<u64>(kPhiloxMultiplier1) * c[2];
  c[0] = xor3(static_cast<u32>(b >> 32), c[1], key.half[0]);
  c[1] = static_cast<u32>(b);
  c[2] = xor3(static_cast<u32>(a >> 32), c[3], key.half[1]);
  c[3] = static_cast<u32>(a);
}

// The four random words of a counter.
__device__ __forceinline__ void philox(u32 (&words)[4], u64 counter, PhiloxKey key) {
  words[0] = static_cast<u32>(counter);
  words[1] = static_cast<u32>(counter >> 32);
  words[2] = words[3] = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    philox_round(words, key);
    key.next_round();
  }
}

// kCount counters with the same high half, which go through the rounds side by side: one key schedule serves all, and
// half of the first two rounds. The caller runs stages 0 .. kStages - 1 in order, other work between them as it likes.
template <int kCount>
class PhiloxRun {
 public:
  static constexpr int kStages = 9;

  // Counter i is `low(i)` below `high`. low(i) is low(i - 1) + step unless i is a multiple of kStretch.
  template <int kStretch, class Low>
  __device__ __forceinline__ void start(Low low, u32 high, u32 step, PhiloxKey key) {
    key_ = key;
    step = opaque(step);  // else the product with it becomes additions of a 64-bit constant, two instructions each
    u64 a[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      a[i] = i % kStretch == 0 ? static_cast<u64>(kPhiloxMultiplier0) * low(i)
                               : multiply_add(step, kPhiloxMultiplier0, a[i - 1]);
    }
    // Round 1 makes {high ^ key, 0, hi(a) ^ key, lo(a)} of {low, high, 0, 0}: the first two words are the same for all,
    // and so is what round 2 makes of them.
    const u64 common = static_cast<u64>(kPhiloxMultiplier0) * (high ^ key_.half[0]);
    const u32 half1 = key_.half[1];
    key_.next_round();
    const u32 common2 = static_cast<u32>(common >> 32) ^ key_.half[1];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const u64 b = static_cast<u64>(kPhiloxMultiplier1) * (static_cast<u32>(a[i] >> 32) ^ half1);
      word[i][0] = static_cast<u32>(b >> 32) ^ key_.half[0];
      word[i][1] = static_cast<u32>(b);
      word[i][2] = static_cast<u32>(a[i]) ^ common2;
      word[i][3] = static_cast<u32>(common);
    }
  }

  // One more round.
  __device__ __forceinline__ void advance() {
    key_.next_round();
#pragma unroll
    for (int i = 0; i < kCount; ++i) philox_round(word[i], key_);
  }

  u32 word[kCount][4];  // the random words, after eight rounds more than the two of `start`

 private:
  PhiloxKey key_{0};
};

}  // namespace ffpa
