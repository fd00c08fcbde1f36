// Attention for head dims 384..1024 on Hopper: a producer lane streams K and V through a ring of slots; two consumer
// warpgroups share 64 query rows, each owning half of O's columns and computing the scores of half of the keys. Above
// head dim 768 a pair of blocks shares the rows in the same way. docs/kernels/hopper.md draws the schedule.
#pragma once

#include "core/kernel_entry.cuh"
#include "kernels/hopper/seesaw_consumer.cuh"
#include "kernels/hopper/seesaw_plan.cuh"
#include "kernels/hopper/seesaw_producer.cuh"

namespace ffpa::hopper {

template <class Variant>
struct Seesaw {
  using Params = abi::TmaAttentionParams;
  using Element = typename Variant::Element;
  using Plan = SeesawPlan<Variant::kHeadDim>;
  using Ring = SlotRing<Plan::kSlots, Plan::kSlotBytes>;

  static constexpr int kThreads = 384;  // producer warpgroup, two consumer warpgroups
  static constexpr int kMinBlocks = 1;
  static constexpr int kSmemBytes = Plan::kSmemBytes;
  static constexpr int kTileM = Plan::kRows / Plan::kBlocks;  // a block: the launch makes the grid of it
  static constexpr int kTileN = Plan::kKeys;
  static constexpr int kCluster = Plan::kBlocks;
  static constexpr int kBoxCols = 64;
  static constexpr int kBoxQRows = Plan::kRows;
  static constexpr int kBoxKvRows = Plan::kBoxKvRows;
  static constexpr int kSwizzle = 128;
  static constexpr int kPersistent = 0;

  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  // Each role computes it: what lives across the roles would have to fit into the producer's registers.
  static __device__ __forceinline__ TileWork work_of_block(const abi::AttentionParams& a) {
    const TileOrder<Deal::hardware, Variant::kBias> order(a, a.q_tiles / Plan::kBlocks, blockIdx.x / Plan::kBlocks);
    return TileWork::of_tile<Plan::kRows, Plan::kKeys>(a, order);
  }

  static __device__ __forceinline__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = ptx::shared_address(shared);
    const SeesawBarriers barriers(base + Plan::kBarrierOffset);
    const Ring ring{base + Plan::kRingOffset, base + Plan::kBarrierOffset + Plan::kFixedBarriers * 8};
    const int block = Plan::kBlocks > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
    const int peer = block ^ 1;
    const int warp = ptx::uniform(threadIdx.x / 32);

    if (threadIdx.x == 0) {
      barriers.init(8);
      ring.init(8);
      ptx::fence_mbarrier_init();
    }
    if constexpr (Plan::kBlocks > 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }

    if (warp < 4) {
      ptx::release_registers<kProducerRegisters>();
      if (warp == 0 && ptx::elect_one()) {
        SeesawProducer<Plan> producer{params, work_of_block(params.a), block,
                                      RingWriter<Plan::kSlots, Plan::kSlotBytes>(ring)};
        producer.run(base, barriers.q_full);
      } else if (Plan::kBlocks > 1 && warp == 1 && ptx::elect_one()) {
        const u32 own_p = base + Plan::kPOffset + block * Plan::kBlockPBytes;
        carry_p_to_peer<Plan>(params, barriers, work_of_block(params.a), own_p, block);
      }
    } else {
      ptx::claim_registers<kConsumerRegisters>();
      const TileWork work = work_of_block(params.a);
      const int warpgroup = warp / 4 - 1;
      const int part = block * 2 + warpgroup;
      const int row = warp % 4 * 16 + threadIdx.x % 32 / 4;
      SeesawConsumer<Element, Plan, Ring, Variant::kBias> consumer{
          params.a,
          work,
          barriers,
          ring,
          ptx::k_major_descriptor(base),
          ptx::k_major_descriptor(base + Plan::kPOffset),
          ptx::k_major_descriptor(ring.data + warpgroup * Plan::kOwnKeys * Plan::kRowBytes),
          ptx::mn_major_descriptor(ring.data + warpgroup * (Plan::kOwnColumns / 64) * Plan::kBoxBytes, Plan::kBoxBytes),
          base + Plan::kPOffset,
          reinterpret_cast<float (*)[Plan::kParts][Plan::kRows]>(shared + Plan::kStatOffset),
          part,
          peer,
          row,
          ColumnLimit(work.query_row, work.query_row + row, params.a.kv_len, !Variant::kBias && params.a.causal,
                      params.a.causal_offset)};
      consumer.run();
    }
  }
};

}  // namespace ffpa::hopper
