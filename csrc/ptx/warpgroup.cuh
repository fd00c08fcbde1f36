// Roles of warpgroups: register reallocation, named barriers, warp-uniform values.
#pragma once

#include "core/types.cuh"

namespace ffpa::ptx {

// The same value in every lane, known to be so to the compiler.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// Hides from the compiler where a value came from. What is computed from it afterwards is computed anew, instead of
// being kept in registers since an earlier place that computed the same.
__device__ __forceinline__ void forget(u32& value) { asm volatile("mov.b32 %0, %0;" : "+r"(value)); }

// True in one lane of a converged warp. The compiler knows that no other lane follows, which keeps the issue of bulk
// copies free of loops over lanes.
__device__ __forceinline__ bool elect_one() {
  u32 elected;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, chosen;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits until `threads` threads have come to barrier `id`; id 0 is __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace ffpa::ptx
