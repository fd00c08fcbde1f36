// Values that the compiler must not look behind.
#pragma once

#include "core/types.cuh"

namespace ffpa {

// Makes `x` unknown to the optimiser without an instruction. In a loop: what derives from `x` is computed anew in each
// pass instead of being kept in registers, and conditions on `x` do not split the loop into copies.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ __forceinline__ u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace ffpa
