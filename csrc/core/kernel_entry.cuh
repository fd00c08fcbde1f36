// Defines a kernel's entry point and, beside it, the facts that the build reads out of the cubin.
//
// `Kernel` provides: type Params; constants kThreads, kMinBlocks, kSmemBytes, kTileM, kTileN, kCluster, kBoxCols,
// kBoxQRows, kBoxKvRows, kSwizzle, kPersistent; and `static __device__ void run(const Params&)`.
#pragma once

#include "abi/kernel_meta.h"
#include "core/variant.cuh"

#define FFPA_KERNEL(entry, ...)                                                                              \
  using entry##_kernel = __VA_ARGS__;                                                                        \
  extern "C" __global__ void __launch_bounds__(entry##_kernel::kThreads, entry##_kernel::kMinBlocks)         \
      entry(const __grid_constant__ typename entry##_kernel::Params params) {                                \
    entry##_kernel::run(params);                                                                             \
  }                                                                                                          \
  extern "C" __device__ const ffpa::abi::KernelMeta entry##_meta = {ffpa::abi::kMetaSchema,                  \
                                                                    entry##_kernel::kThreads,                \
                                                                    entry##_kernel::kSmemBytes,              \
                                                                    entry##_kernel::kTileM,                  \
                                                                    entry##_kernel::kTileN,                  \
                                                                    entry##_kernel::kCluster,                \
                                                                    sizeof(typename entry##_kernel::Params), \
                                                                    entry##_kernel::kBoxCols,                \
                                                                    entry##_kernel::kBoxQRows,               \
                                                                    entry##_kernel::kBoxKvRows,              \
                                                                    entry##_kernel::kSwizzle,                \
                                                                    entry##_kernel::kPersistent,             \
                                                                    {0, 0, 0, 0}};
