// Tile shapes and shared-memory layout of the bm128 kernel, for each head dim.
#pragma once

#include "kernels/hopper/tile_order.cuh"

namespace ffpa::hopper {

// Head dims 64..320: each consumer warpgroup owns 64 query rows and all of O's columns. With a mask tensor its tiles
// take shared memory from K and V, and at 128 and 256 keys from a step.
template <int kHeadDim, bool kMaskTensor, int kConsumers>
struct Bm128Plan {
  static_assert(kHeadDim % 64 == 0 && kHeadDim >= 64 && kHeadDim <= 320, "64-column groups, O within registers");

  static constexpr bool kMasked = kMaskTensor;
  static constexpr int kWarpgroups = kConsumers;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kKeys = kWarpgroups == 4  ? 64
                               : kHeadDim <= 64  ? 128
                               : kHeadDim <= 128 ? (kMasked ? 128 : 176)
                               : kHeadDim <= 192 ? 128
                               : kHeadDim <= 256 ? (kMasked ? 80 : 96)
                                                 : 64;

  // Threads: the consumers, then a producer warpgroup that gives its registers to them.
  static constexpr int kConsumerThreads = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 240 : kWarpgroups == 3 ? 160 : 112;

  // A block that stays loads the next tile while it ends one. The warps that load masks lack the registers for it.
  static constexpr bool kPersistent = !kMasked || kHeadDim <= 64;
  using Order = TileOrder<kPersistent ? Deal::persistent : Deal::hardware, kMasked>;

  // Q, K and V lie in groups of 64 columns: one box each, 128 bytes a row.
  static constexpr int kColumnGroups = kHeadDim / 64;
  static constexpr int kRowBytes = 128;
  static constexpr int kQGroupBytes = kRows * kRowBytes;
  static constexpr int kKvGroupBytes = kKeys * kRowBytes;

  // A ring of mask tiles, of 64 rows each, for every consumer warpgroup.
  static constexpr int kMaskSlots = !kMasked ? 0 : kHeadDim == 192 || kHeadDim > 256 ? 1 : 2;
  static constexpr int kMaskBytes = 64 * kKeys * 2;
  static constexpr bool kEarlyMask = kHeadDim == 128 || kHeadDim > 192;  // read beside QK^T: there are registers

  // Shared memory: Q | ring of K and V tiles | rings of mask tiles | barriers.
  static constexpr int kBlockBytes = 232448;  // what a block can have on sm_90
  static constexpr int kQBytes = kColumnGroups * kQGroupBytes;
  static constexpr int kSlotBytes = kColumnGroups * kKvGroupBytes;
  static constexpr int kFittingSlots =
      (kBlockBytes - kQBytes - kMaskSlots * kMaskBytes * kWarpgroups - 256) / kSlotBytes;
  static constexpr int kSlots = kFittingSlots < 8 ? kFittingSlots : 8;
  static constexpr int kRingOffset = kQBytes;
  static constexpr int kMaskOffset = kRingOffset + kSlots * kSlotBytes;
  static constexpr int kBarrierOffset = kMaskOffset + kMaskSlots * kMaskBytes * kWarpgroups;
  static constexpr int kMaskBarrierOffset = kBarrierOffset + (2 + 2 * kSlots) * 8;
  static constexpr int kSmemBytes = kMaskBarrierOffset + 2 * kMaskSlots * kWarpgroups * 8;
  static_assert(kSlots >= 3 && kSmemBytes <= kBlockBytes);
};

}  // namespace ffpa::hopper
