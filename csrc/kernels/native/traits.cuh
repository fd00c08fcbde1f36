// Everything about a kernel that follows from its variant, its tile table and its kind of work tile.
#pragma once

#include "abi/attention_params.h"
#include "core/swizzle.cuh"
#include "core/types.cuh"
#include "core/variant.cuh"
#include "kernels/native/tiles.cuh"

namespace ffpa::native {

template <class Variant, class Tiles, template <class> class WorkType>
struct Traits {
  using Work = WorkType<Traits>;
  using Element = typename Variant::Element;
  static constexpr bool kAccF16 = Variant::kAccF16;
  static constexpr bool kBias = Variant::kBias;
  static constexpr bool kBiasF32 = Variant::kBiasF32;
  static constexpr bool kAnyBias = kBias || kBiasF32;
  static constexpr bool kDropout = Variant::kDropout;
  static constexpr Demands kDemands{Variant::kArch, kAccF16, kDropout, Variant::kStages, kBiasF32 ? 4 : kBias ? 2 : 0};
  static constexpr Tile kTile = Tiles::choose(Variant::kHeadDim, Variant::kSmemBlock, kDemands);
  static constexpr int kSmemBudget = Tiles::budget(Variant::kHeadDim, Variant::kSmemBlock);

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

  // Shared memory: Q (later O) | P | mask tile | ring | row statistics.
  static constexpr int kQBytes = kTileM * kBoxRowBytes * kBoxes;
  static constexpr int kPBytes = kWarpsN > 1 ? kTileM * kTileN * 2 : 0;
  static constexpr int kBiasBytes = kTileM * kTileN * kDemands.mask_bytes;
  static constexpr int kStatsBytes = kWarpsN > 1 ? kWarpsN * kTileM * 4 : 0;
  static constexpr int kRingBudget = kSmemBudget - kQBytes - kPBytes - kBiasBytes - kStatsBytes;

  static constexpr int kStepBoxes =
      step_boxes(kTile.max_step_boxes, kBoxes, kRingBudget / kBoxBytes / Variant::kStages);
  static constexpr int kStepCols = kStepBoxes * kBoxCols;
  static constexpr int kSteps = kBoxes / kStepBoxes;  // of K, and again of V, for one tile of keys
  static constexpr int kStageBytes = kStepBoxes * kBoxBytes;
  // The stages asked for, or as many as fit.
  static constexpr int kStages = min_of(Variant::kStages, kRingBudget / kStageBytes);

  static constexpr int kQOffset = 0;
  static constexpr int kPOffset = kQOffset + kQBytes;
  static constexpr int kBiasOffset = kPOffset + kPBytes;
  static constexpr int kRingOffset = kBiasOffset + kBiasBytes;
  static constexpr int kStatsOffset = kRingOffset + kStages * kStageBytes;
  static constexpr int kSmemBytes = kStatsOffset + kStatsBytes;

  // A warp's share of S: kRowsWarp x kSCols. Its share of every V step: kVCols columns.
  static constexpr int kSCols = kTileN / kWarpsN;
  static constexpr int kSTiles = kSCols / 8;
  static constexpr int kVCols = kStepCols / kWarpsN;
  static constexpr int kVTiles = kVCols / 8;
  static constexpr int kOTiles = kSteps * kVTiles;
  static constexpr int kKSlices = kTileN / 16;  // contraction steps of P V

  // True when scores are raw dot products, and the scale is part of the exponent's factor.
  template <class Params>
  static __device__ bool raw_scores(const Params& p) {
    return !kAnyBias || (kBias && p.mask_kind == abi::MaskKind::boolean);
  }

  // True when raw scores are to be negated: the factor has the scale without its sign.
  template <class Params>
  static __device__ bool turns(const Params& p) {
    return raw_scores(p) && p.scale_log2 < 0.0f;
  }

  static_assert(kStages >= 2, "shared memory does not hold two stages");
  static_assert(kSmemBytes <= kSmemBudget);
  static_assert(kPOffset % 1024 == 0 && kBiasOffset % 1024 == 0 && kRingOffset % 1024 == 0 && kStageBytes % 1024 == 0);
  static_assert(kRowsWarp % 16 == 0 && kSCols >= 8 && kVCols >= 8 && kTileN % kBoxCols == 0);
  static_assert(kWarpsN == 1 || kVCols <= kBoxCols, "a warp's columns of a V step lie in one box");
  static_assert(!(kBias && kBiasF32), "one mask type a variant");
  static_assert(!kAccF16 || is_same<Element, fp16>, "f16 accumulators take fp16 inputs");
};

}  // namespace ffpa::native
