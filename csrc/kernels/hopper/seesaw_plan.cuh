// Tile shapes and shared-memory layout of the seesaw kernel, for each head dim.
#pragma once

namespace ffpa::hopper {

// The largest divisor of `number` that is not above `limit`.
__host__ __device__ constexpr int largest_divisor(int number, int limit) {
  int divisor = limit;
  while (number % divisor != 0) --divisor;
  return divisor;
}

// Head dims 384..1024: O no longer fits into one warpgroup's registers for 64 rows, so two warpgroups share the 64
// query rows and each owns one half of O's columns. In a step of kKeys keys each computes the scores of one half of the
// keys.
template <int kHeadDim>
struct SeesawPlan {
  static_assert(kHeadDim % 128 == 0 && kHeadDim >= 128 && kHeadDim <= 1024, "two halves of 64-column groups");

  // Above 768 two blocks, a cluster, share the tile: each computes the scores of one half of the keys, and owns one
  // half of O's columns.
  static constexpr int kBlocks = kHeadDim > 768 ? 2 : 1;
  static constexpr int kParts = 2 * kBlocks;  // warpgroups that share the tile

  static constexpr int kRows = 64;                                             // queries a block
  static constexpr int kKeys = kBlocks > 1 ? 256 : kHeadDim > 640 ? 64 : 128;  // keys a step
  static constexpr int kBlockKeys = kKeys / kBlocks;                           // of which a block computes the scores
  static constexpr int kOwnKeys = kKeys / kParts;  // of which a warpgroup computes the scores
  static constexpr int kColumnGroups = kHeadDim / 64;
  static constexpr int kBlockGroups = kColumnGroups / kBlocks;  // column groups of O in a block
  static constexpr int kOwnColumns = kHeadDim / kParts;         // columns of O that a warpgroup owns

  // K passes through the ring in slots of the block's keys x kSlotKColumns, V in slots of kSlotVKeys x the block's
  // columns.
  static constexpr int kSlotKColumns = kHeadDim == 384 || kHeadDim == 640 || kBlocks > 1 ? 64 : 128;
  static constexpr int kSlotVKeys = kHeadDim <= 512 ? 32 : 16;
  static constexpr int kKSlots = kHeadDim / kSlotKColumns;
  static constexpr int kVSlots = kKeys / kSlotVKeys;
  static constexpr int kStorePSlot = 1;  // of QK^T: the one beside which P of the step before is stored
  static constexpr int kKSlotBytes = kBlockKeys * kSlotKColumns * 2;
  static constexpr int kVSlotBytes = kSlotVKeys * kBlockGroups * 128;
  static constexpr int kSlotBytes = kKSlotBytes > kVSlotBytes ? kKSlotBytes : kVSlotBytes;

  // Boxes of 64 columns: 128 bytes a row.
  static constexpr int kBoxKvRows = kSlotVKeys;
  static constexpr int kRowBytes = 128;
  static constexpr int kBoxBytes = kBoxKvRows * kRowBytes;

  // Shared memory: Q | P | ring | row statistics | barriers.
  static constexpr int kQBytes = kRows * kHeadDim * 2;
  static constexpr int kPBytes = kRows * kKeys * 2;
  static constexpr int kBlockPBytes = kPBytes / kBlocks;
  static constexpr int kStatBytes = 2 * kParts * kRows * 4;  // [step parity][part][row] floats
  static constexpr int kBlockBytes = 232448;                 // what a block can have on sm_90
  static constexpr int kMiscBytes = kStatBytes + 512;
  static constexpr int kFittingSlots = (kBlockBytes - kQBytes - kPBytes - kMiscBytes) / kSlotBytes;

  // The ring's length divides the slots of a step, so that a consumer knows the place of each slot when it is compiled:
  // slot addresses held in registers would not fit beside O.
  static constexpr int kStepSlots = kKSlots + kVSlots;
  static constexpr int kSlots = largest_divisor(kStepSlots, kFittingSlots);
  static constexpr int kStepRounds = kStepSlots / kSlots;

  static constexpr int kPOffset = kQBytes;
  static constexpr int kRingOffset = kPOffset + kPBytes;
  static constexpr int kStatOffset = kRingOffset + kSlots * kSlotBytes;
  static constexpr int kBarrierOffset = kStatOffset + kStatBytes;
  static constexpr int kFixedBarriers = 7;
  static constexpr int kSmemBytes = kBarrierOffset + (kFixedBarriers + 2 * kSlots) * 8;
  static_assert(kSlots >= 3 && kSmemBytes <= kBlockBytes);
};

}  // namespace ffpa::hopper
