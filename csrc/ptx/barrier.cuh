// Barriers of a block and of a group of its warps.
#pragma once

#include "core/types.cuh"

namespace ffpa::ptx {

__device__ __forceinline__ void block_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// `id` in 1..15; `threads` is a multiple of 32.
template <int kThreads>
__device__ __forceinline__ void group_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace ffpa::ptx
