// Shared-memory barriers (mbarrier). Every form is at CTA scope: the cluster-scope acquire and release that some
// libraries default to cost a GPU-wide memory barrier and a cache invalidation on each wait.
#pragma once

#include "ptx/memory.cuh"

namespace ffpa::ptx {

// A barrier in shared memory, named by its address. Phases alternate parity, starting with 0.
struct Mbarrier {
  u32 address;

  __device__ __forceinline__ void init(u32 arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals));
  }

  __device__ __forceinline__ void arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }

  // One arrival for the whole warp, after what its lanes did before.
  __device__ __forceinline__ void warp_arrive() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive();
  }

  // An arrival that also makes the phase wait for `bytes` written by the copy engine.
  __device__ __forceinline__ void arrive_expect(u32 bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
  }

  // Makes the current phase wait for `bytes` more, without an arrival.
  __device__ __forceinline__ void expect(unsigned bytes) const {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
  }

  // Blocks until the phase of the given parity is complete.
  __device__ __forceinline__ void wait(u32 parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(address),
        "r"(parity)
        : "memory");
  }
};

// Makes initialised barriers visible to the copy engine; a block barrier follows.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders a thread's ordinary shared-memory stores before reads by tensor cores and the copy engine.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace ffpa::ptx
