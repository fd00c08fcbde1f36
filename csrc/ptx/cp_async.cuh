// Asynchronous copies from global to shared memory.
#pragma once

#include "core/types.cuh"

namespace ffpa::ptx {

// Copies 16 bytes past L1; with `valid` false reads nothing and writes 16 zero bytes.
__device__ __forceinline__ void cp_async_16(u32 shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

// Copies kSize bytes, 8 or 16.
template <int kSize>
__device__ __forceinline__ void cp_async(u32 shared, const void* global) {
  if constexpr (kSize == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kSize) : "memory");
  }
}

// Copies the first `bytes` of kSize (8 or 16) bytes and zeroes the others.
template <int kSize>
__device__ __forceinline__ void cp_async_partial(u32 shared, const void* global, int bytes) {
  if constexpr (kSize == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kSize), "r"(bytes)
                 : "memory");
  }
}

// The same for 4 bytes, through L1.
__device__ __forceinline__ void cp_async_4_partial(u32 shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

// This thread's arrival on a shared-memory barrier that counts it, once its copies so far are done.
__device__ __forceinline__ void cp_async_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kPending` of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace ffpa::ptx
