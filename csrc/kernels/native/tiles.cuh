// The one table of tile sizes.
//
// A block owns tile_m query rows and walks the keys tile_n at a time. Its warps form a warps_m x warps_n grid: along M
// they split the rows; along N they split the keys of S = Q K^T and the head dim of O = P V.
//
// Three limits decide a row:
//  * registers: O costs tile_m * D / threads f32 a thread and must stay at 160 or below (255 registers in all);
//  * shared memory: Q stays resident (tile_m * D * 2 bytes), P passes through shared memory where warps_n > 1, and the
//    ring of K and V boxes gets the rest;
//  * shared-memory bandwidth (128 bytes a clock): an operand-B fragment is 256 bytes and serves rows_per_warp / 16
//  MMAs,
//    so 16 rows a warp cap the tensor cores at half a block-wide MMA a clock; 32 rows halve the traffic.
#pragma once

#include "core/swizzle.cuh"
#include "core/types.cuh"

namespace ffpa::native {

struct Tile {
  int m;
  int n;
  int warps_m;
  int warps_n;
  int max_step_boxes;  // boxes (64 columns) of K or V between two barriers, at most
};

// What a variant needs beyond the plain kernel.
struct Demands {
  int arch;  // 10 * sm number
  bool acc_f16;
  bool dropout;
  int stages;      // a variant may be a few registers short of a larger tile at certain depths
  int mask_bytes;  // shared memory an element of the mask; a boolean mask fits where an additive one does

  __host__ __device__ constexpr bool plain() const { return !dropout && mask_bytes == 0; }
  __host__ __device__ constexpr bool both() const { return dropout && mask_bytes > 0; }
};

// `smem` is what a block may use on the arch: 99 KiB (sm_89, sm_120f), 163 KiB (sm_80) or 227 KiB (sm_90a, sm_100f).
__host__ __device__ constexpr Tile preferred_tile(int head_dim, int smem, Demands demands) {
  const bool roomy = smem >= 160 * 1024;
  if (demands.acc_f16) {  // the f16 partials need registers of their own
    if (head_dim <= 128) return {128, 64, 8, 1, 2};
    if (head_dim <= 384) return {64, 64, 2, 4, 1};
    if (head_dim <= 768) return {32, 64, 1, 8, 1};
    return demands.dropout ? Tile{16, 64, 1, 8, 1} : Tile{32, 64, 2, 4, 1};
  }
  if (demands.both() && head_dim > 128) {  // a few registers short of the tiles below, on one arch or another
    return head_dim <= 512 ? Tile{64, 64, 2, 4, 1} : Tile{32, 64, 1, 8, 1};
  }
  if (head_dim <= 64) return {128, roomy && demands.plain() && demands.stages < 4 ? 128 : 64, 4, 1, 1};
  if (head_dim <= 128) {
    // sm_80 code takes a few registers more than there are for dropout beside 32 rows of O and S; sm_100 code even
    // for nothing.
    if (!roomy) return {128, 64, 8, 1, demands.arch >= 1000 && !demands.plain() ? 1 : 2};
    if (demands.arch >= 1000) return demands.plain() ? Tile{128, 128, 4, 2, 2} : Tile{128, 64, 8, 1, 1};
    if (demands.arch < 900 && demands.dropout) return {128, 64, 8, 1, 1};
    return {128, 64, 4, 1, demands.plain() ? 2 : 1};
  }
  if (head_dim <= 256) return roomy ? Tile{128, 64, 4, 2, 2} : Tile{128, 64, 8, 1, 1};
  if (head_dim <= 320) {
    // A head dim that ends within a box takes a register more at some depths.
    const bool fits = roomy && !demands.dropout && (head_dim == 320 || demands.stages == 3);
    return fits ? Tile{128, 64, 4, 2, 1} : Tile{64, 64, 2, 4, 1};
  }
  if (head_dim <= 512) {
    if (demands.dropout && demands.stages == 4) return {64, 64, 2, 4, 1};
    return roomy ? Tile{64, 128, 2, 4, demands.arch >= 1000 ? 1 : 2} : Tile{64, 64, 2, 4, 1};
  }
  if (head_dim <= 640) return roomy ? Tile{64, 64, 2, 4, demands.stages == 2 ? 1 : 2} : Tile{32, 64, 1, 8, 1};
  return roomy ? Tile{32, 128, 1, 8, 2} : Tile{32, 64, 1, 8, 1};
}

// Boxes a step: a divisor of the boxes of the head dim, no more than `limit`, and so few that the stages fit.
__host__ __device__ constexpr int step_boxes(int limit, int boxes, int fitting) {
  int n = limit;
  while (n > 1 && (boxes % n != 0 || n > fitting)) --n;
  return n;
}

struct PrefillTiles {
  // The preferred tile, or a smaller one where the mask's tile leaves no room for two boxes.
  static __host__ __device__ constexpr Tile choose(int head_dim, int smem, Demands demands) {
    const Tile tile = preferred_tile(head_dim, smem, demands);
    const int q = tile.m * kBoxRowBytes * ceil_div(head_dim, kBoxCols);
    const int p = tile.warps_n > 1 ? tile.m * tile.n * 2 + tile.warps_n * tile.m * 4 : 0;
    if (q + p + tile.m * tile.n * demands.mask_bytes + 2 * tile.n * kBoxRowBytes <= smem) return tile;
    if (head_dim > 128 && head_dim <= 256 && demands.dropout)
      return {64, 64, 2, 4, 1};  // the registers for 16 rows of O
    return head_dim <= 256 ? Tile{64, 64, 4, 1, 1} : Tile{32, 64, 1, 8, 1};
  }
  // Shared memory a block plans with.
  static __host__ __device__ constexpr int budget(int, int smem) { return smem; }
};

// Prefill with boxes brought by the copy engine. Warps that compute have 232 or 240 registers where another one asks
// for boxes, so tiles that need all 255 give way; where warps wait for boxes only, not for each other, larger steps
// pay.
struct TmaTiles {
  static __host__ __device__ constexpr Tile choose(int head_dim, int smem, Demands demands) {
    Tile tile = PrefillTiles::choose(head_dim, smem, demands);
    if (demands.acc_f16) return head_dim > 768 ? Tile{32, 64, 2, 4, 1} : tile;
    if (smem >= 160 * 1024) {
      if (head_dim <= 64) return {128, 64, 4, 1, 1};
      if (head_dim <= 128) return {128, 128, 4, 2, 2};
      if (head_dim <= 256) tile.max_step_boxes = 1;
      const bool sm_100 = demands.arch >= 1000;
      const bool wants_more = demands.stages == 4 || (demands.mask_bytes > 0 && (demands.stages == 2 || sm_100));
      if (head_dim > 128 && head_dim <= 256 && sm_100 && demands.stages == 2 && demands.dropout)
        return {64, 64, 2, 4, 1};
      if (head_dim > 256 && head_dim <= 320 && wants_more) return {64, 64, 2, 4, 1};
      if (head_dim > 384 && head_dim <= 448) return {64, 64, 2, 4, 1};  // seven boxes, one a step
      if (head_dim > 320 && head_dim <= 512 && sm_100 && !demands.plain()) return {64, 64, 2, 4, 2};
    }
    if (smem < 160 * 1024 && head_dim > 128 && head_dim <= 256 && demands.dropout) return {64, 64, 2, 4, 1};
    if (head_dim > 512 && head_dim <= 640 && demands.stages == 4 && demands.dropout) return {32, 64, 1, 8, 1};
    if (head_dim > 512 && head_dim <= 640) tile.max_step_boxes = demands.stages == 2 ? 1 : 2;
    return tile;
  }
  static __host__ __device__ constexpr int budget(int, int smem) { return smem - kBarrierBytes; }
  static constexpr int kBarrierBytes = 64;  // a full and an empty one of 8 bytes for each of up to four stages
};

// Decode: the rows of a query-head group fill one MMA tile of 16, and all warps split the keys of S and the columns of
// O. The kernel waits for memory, so shared memory is planned for two blocks a multiprocessor: copies of one in flight
// while the other computes.
struct DecodeTiles {
  static __host__ __device__ constexpr Tile choose(int head_dim, int smem, Demands demands) {
    const bool wide = smem >= 160 * 1024 && head_dim <= 256 && demands.mask_bytes <= 2;
    return {16, wide ? 128 : 64, 1, head_dim <= 512 ? 4 : 8, head_dim <= 512 ? 2 : 4};
  }
  static __host__ __device__ constexpr int budget(int head_dim, int smem) {
    return head_dim <= 512 ? smem / 2 - 1024 : smem;
  }
};

}  // namespace ffpa::native
