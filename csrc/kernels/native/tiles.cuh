// The one table of tile sizes of the prefill kernel.
//
// A block owns tile_m query rows and walks the keys tile_n at a time. Its warps form a warps_m x warps_n grid: along M they
// split the rows; along N they split the keys of S = Q K^T and the head dim of O = P V.
//
// Three limits decide a row:
//  * registers: O costs tile_m * D / threads f32 a thread and must stay at 160 or below (255 registers in all);
//  * shared memory: Q stays resident (tile_m * D * 2 bytes), P passes through shared memory where warps_n > 1, and the
//    ring of K and V boxes gets the rest;
//  * shared-memory bandwidth (128 bytes a clock): an operand-B fragment is 256 bytes and serves rows_per_warp / 16 MMAs.
//    16 rows a warp cost 256 bytes an MMA and cap the tensor cores at half a block-wide MMA a clock; 32 rows halve that.
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

// `smem` is what a block may use on the arch: 99 KiB (sm_89, sm_120f), 163 KiB (sm_80) or 227 KiB (sm_90a, sm_100f).
__host__ __device__ constexpr Tile prefill_tile(int head_dim, int smem, bool spare_registers) {
  const bool roomy = smem >= 160 * 1024;
  if (spare_registers) {
    if (head_dim <= 128) return {128, 64, 8, 1, 2};
    if (head_dim <= 384) return {64, 64, 2, 4, 1};
    return head_dim <= 768 ? Tile{32, 64, 1, 8, 1} : Tile{32, 64, 2, 4, 1};
  }
  if (head_dim <= 64) return {128, 64, 4, 1, 1};
  if (head_dim <= 128) return roomy ? Tile{128, 64, 4, 1, 2} : Tile{128, 64, 8, 1, 2};
  if (head_dim <= 256) return roomy ? Tile{128, 64, 4, 2, 2} : Tile{128, 64, 8, 1, 1};
  if (head_dim <= 320) return roomy ? Tile{128, 64, 4, 2, 1} : Tile{64, 64, 2, 4, 1};
  if (head_dim <= 512) return roomy ? Tile{64, 128, 2, 4, 2} : Tile{64, 64, 2, 4, 1};
  if (head_dim <= 640) return roomy ? Tile{64, 64, 2, 4, 1} : Tile{32, 64, 1, 8, 1};
  return roomy ? Tile{32, 128, 1, 8, 2} : Tile{32, 64, 1, 8, 1};
}

// Boxes a step: a divisor of the boxes of the head dim, no more than `limit`, and so few that the stages fit.
__host__ __device__ constexpr int step_boxes(int limit, int boxes, int fitting) {
  int n = limit;
  while (n > 1 && (boxes % n != 0 || n > fitting)) --n;
  return n;
}

// Everything about a prefill kernel that follows from its variant.
template <class Variant>
struct PrefillTraits {
  using Element = typename Variant::Element;
  static constexpr Tile kTile = prefill_tile(Variant::kHeadDim, Variant::kSmemBlock, Variant::kAccF16);
  static constexpr bool kAccF16 = Variant::kAccF16;
  static constexpr bool kBias = Variant::kBias;
  static constexpr bool kBiasF32 = Variant::kBiasF32;
  static constexpr bool kAnyBias = kBias || kBiasF32;
  static constexpr bool kDropout = Variant::kDropout;

  static constexpr int kTileM = kTile.m;
  static constexpr int kTileN = kTile.n;
  static constexpr int kWarpsM = kTile.warps_m;
  static constexpr int kWarpsN = kTile.warps_n;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kGroupThreads = 32 * kWarpsN;  // the warps that share query rows
  static constexpr int kRowsWarp = kTileM / kWarpsM;
  static constexpr int kMTiles = kRowsWarp / 16;

  // Head dim in boxes, 16-wide contraction steps and pipeline steps.
  static constexpr int kHeadDim = Variant::kHeadDim;
  static constexpr int kBoxes = ceil_div(kHeadDim, kBoxCols);
  static constexpr int kContractions = ceil_div(kHeadDim, 16);
  static constexpr int kBoxBytes = kTileN * kBoxRowBytes;

  // Shared memory: Q (later O) | P | ring | row statistics.
  static constexpr int kQBytes = kTileM * kBoxRowBytes * kBoxes;
  static constexpr int kPBytes = kWarpsN > 1 ? kTileM * kTileN * 2 : 0;
  static constexpr int kStatsBytes = kWarpsN > 1 ? kWarpsN * kTileM * 4 : 0;
  static constexpr int kRingBudget = Variant::kSmemBlock - kQBytes - kPBytes - kStatsBytes;

  static constexpr int kStepBoxes = step_boxes(kTile.max_step_boxes, kBoxes, kRingBudget / kBoxBytes / Variant::kStages);
  static constexpr int kStepCols = kStepBoxes * kBoxCols;
  static constexpr int kSteps = kBoxes / kStepBoxes;  // of K, and again of V, for one tile of keys
  static constexpr int kStageBytes = kStepBoxes * kBoxBytes;
  // The stages asked for, or as many as fit.
  static constexpr int kStages = min_of(Variant::kStages, kRingBudget / kStageBytes);

  static constexpr int kQOffset = 0;
  static constexpr int kPOffset = kQOffset + kQBytes;
  static constexpr int kRingOffset = kPOffset + kPBytes;
  static constexpr int kStatsOffset = kRingOffset + kStages * kStageBytes;
  static constexpr int kSmemBytes = kStatsOffset + kStatsBytes;

  // A warp's share of S: kRowsWarp x kSCols. Its share of every V step: kVCols columns.
  static constexpr int kSCols = kTileN / kWarpsN;
  static constexpr int kSTiles = kSCols / 8;
  static constexpr int kVCols = kStepCols / kWarpsN;
  static constexpr int kVTiles = kVCols / 8;
  static constexpr int kOTiles = kSteps * kVTiles;
  static constexpr int kKSlices = kTileN / 16;  // contraction steps of P V

  // True when raw scores are to be negated: without a mask tensor the sign of the scale is not in `factor`.
  template <class Params>
  static __device__ bool turns(const Params& p) {
    return !kAnyBias && p.scale_log2 < 0.0f;
  }

  static_assert(kStages >= 2, "shared memory does not hold two stages");
  static_assert(kSmemBytes <= Variant::kSmemBlock);
  static_assert(kPOffset % 1024 == 0 && kRingOffset % 1024 == 0 && kStageBytes % 1024 == 0);
  static_assert(kRowsWarp % 16 == 0 && kSCols >= 8 && kVCols >= 8 && kTileN % kBoxCols == 0);
  static_assert(kWarpsN == 1 || kVCols <= kBoxCols, "a warp's columns of a V step lie in one box");
  static_assert(!kAccF16 || is_same<Element, fp16>, "f16 accumulators take fp16 inputs");
};

}  // namespace ffpa::native
