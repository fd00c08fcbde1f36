// Special functions and conversions.
#pragma once

#include "core/types.cuh"
#include "core/variant.cuh"

namespace ffpa::ptx {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Byte k of the result is bits 4k .. 4k + 3 of `selector`: a byte 0 .. 3 of `x`, or, with 8 added, eight copies of its
// sign bit.
__device__ __forceinline__ u32 byte_signs(u32 x, u32 selector) {
  u32 y;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(y) : "r"(x), "r"(selector));
  return y;
}

// Two floats rounded to the nearest even, `lo` in the low half.
template <class Element>
__device__ __forceinline__ u32 pack2(float lo, float hi) {
  u32 r;
  if constexpr (is_same<Element, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  }
  return r;
}

template <class Element>
__device__ __forceinline__ float to_float(u16 bits) {
  if constexpr (is_same<Element, bf16>) {
    return __uint_as_float(static_cast<u32>(bits) << 16);
  } else {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
    return y;
  }
}

template <class Element>
__device__ __forceinline__ void unpack2(u32 pair, float& lo, float& hi) {
  if constexpr (is_same<Element, bf16>) {
    lo = __uint_as_float(pair << 16);
    hi = __uint_as_float(pair & 0xffff0000u);
  } else {
    lo = to_float<Element>(static_cast<u16>(pair));
    hi = to_float<Element>(static_cast<u16>(pair >> 16));
  }
}

}  // namespace ffpa::ptx
