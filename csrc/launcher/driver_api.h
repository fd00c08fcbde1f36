// The part of the CUDA driver API that the launcher calls, declared here so that building it needs no CUDA header.
// Layouts and enumerators are those of the driver's stable ABI (CUDA 12.0 and newer, 64-bit). The calling convention is
// the platform's own: the one that the driver names on Windows means nothing to 64-bit code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ffpa::driver {

static_assert(sizeof(void*) == 8, "the layouts below are those of 64-bit drivers");

using Result = int;  // 0 = success
using Device = int;
using Context = struct ContextTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Stream = void*;

enum FunctionAttribute : int {
  kMaxDynamicSharedSizeBytes = 8,
  kNonPortableClusterSizeAllowed = 14,
};

enum LaunchAttributeId : int { kClusterDimension = 4 };

struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned int x, y, z;
    } cluster;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72, "CUlaunchAttribute is 72 bytes");

struct LaunchConfig {
  unsigned int grid_x, grid_y, grid_z;
  unsigned int block_x, block_y, block_z;
  unsigned int shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned int attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56, "CUlaunchConfig is 56 bytes");

enum TensorMapType : int { kMapFloat16 = 6, kMapBfloat16 = 9 };
enum TensorMapInterleave : int { kInterleaveNone = 0 };
enum TensorMapSwizzle : int { kSwizzleNone = 0, kSwizzle32B = 1, kSwizzle64B = 2, kSwizzle128B = 3 };
enum TensorMapL2Promotion : int { kPromoteL2To256B = 3 };
enum TensorMapFill : int { kFillZero = 0 };

// X(symbol, parameters): entry points that every supported driver has.
#define FFPA_DRIVER_REQUIRED(X)                                                                                    \
  X(cuGetErrorName, (Result, const char**))                                                                        \
  X(cuGetErrorString, (Result, const char**))                                                                      \
  X(cuDeviceGet, (Device*, int))                                                                                   \
  X(cuDevicePrimaryCtxRetain, (Context*, Device))                                                                  \
  X(cuCtxGetCurrent, (Context*))                                                                                   \
  X(cuCtxGetDevice, (Device*))                                                                                     \
  X(cuCtxPushCurrent_v2, (Context))                                                                                \
  X(cuCtxPopCurrent_v2, (Context*))                                                                                \
  X(cuLibraryLoadData, (Library*, const void*, void*, void**, unsigned int, void*, void**, unsigned int))          \
  X(cuLibraryGetKernel, (Kernel*, Library, const char*))                                                           \
  X(cuKernelSetAttribute, (FunctionAttribute, int, Kernel, Device))                                                \
  X(cuLaunchKernelEx, (const LaunchConfig*, Kernel, void**, void**))                                               \
  X(cuTensorMapEncodeTiled,                                                                                        \
    (void*, TensorMapType, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*, const std::uint32_t*, \
     const std::uint32_t*, TensorMapInterleave, TensorMapSwizzle, TensorMapL2Promotion, TensorMapFill))            \
  X(cuTensorMapReplaceAddress, (void*, void*))

// Entry points that are newer than the oldest supported driver; null where the driver lacks them.
#define FFPA_DRIVER_OPTIONAL(X) X(cuKernelGetParamInfo, (Kernel, std::size_t, std::size_t*, std::size_t*))

struct EntryPoints {
#define FFPA_DECLARE_ENTRY(name, parameters) Result(*name) parameters = nullptr;
  FFPA_DRIVER_REQUIRED(FFPA_DECLARE_ENTRY)
  FFPA_DRIVER_OPTIONAL(FFPA_DECLARE_ENTRY)
#undef FFPA_DECLARE_ENTRY
};

}  // namespace ffpa::driver
