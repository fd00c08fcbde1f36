// A box is [rows][64] 16-bit elements in shared memory: rows of 128 bytes, 1024-byte aligned. The eight 16-byte units
// of a row are permuted by unit ^ (row & 7), which is the 128-byte swizzle of the tensor copy engine, so that any
// loader can fill a box, and the eight rows that one ldmatrix phase reads lie in different banks.
#pragma once

#include "core/types.cuh"

namespace ffpa {

inline constexpr int kBoxCols = 64;
inline constexpr int kBoxRowBytes = 128;

__device__ __forceinline__ u32 swizzled(u32 row, u32 unit) { return row * kBoxRowBytes + ((unit ^ (row & 7)) << 4); }

}  // namespace ffpa
