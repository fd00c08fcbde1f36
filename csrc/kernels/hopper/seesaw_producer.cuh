// What feeds the seesaw kernel's consumers: the loads from global memory, and P from the other block of a pair.
#pragma once

#include "kernels/hopper/seesaw_barriers.cuh"
#include "kernels/hopper/slot_ring.cuh"
#include "kernels/hopper/tile_work.cuh"
#include "ptx/cluster.cuh"
#include "ptx/tma.cuh"

namespace ffpa::hopper {

// The lane that keeps the ring filled, in the order in which the consumers read: K of step 0, then for each step K of
// the next step and V of this one.
template <class Plan>
struct SeesawProducer {
  const abi::TmaAttentionParams& params;
  TileWork work;
  int block;  // of the tile's blocks
  RingWriter<Plan::kSlots, Plan::kSlotBytes> writer;

  __device__ __forceinline__ void load_q(u32 q, ptx::Mbarrier q_full) const {
    q_full.arrive_expect(Plan::kQBytes);
#pragma unroll 1
    for (int group = 0; group < Plan::kColumnGroups; ++group) {
      ptx::load_tile(q + group * Plan::kRows * Plan::kRowBytes, params.q_map,
                     {group * 64, work.query_row, work.head, work.batch}, q_full);
    }
  }

  // The block's keys x kSlotKColumns at a time.
  __device__ __forceinline__ void load_k(int step) {
    const int first_key = work.first_key(step, Plan::kKeys) + block * Plan::kBlockKeys;
#pragma unroll 1
    for (int column = 0; column < Plan::kColumnGroups * 64; column += Plan::kSlotKColumns) {
      writer.open(Plan::kKSlotBytes);
      constexpr int kBoxesDown = Plan::kBlockKeys / Plan::kBoxKvRows;
#pragma unroll
      for (int box = 0; box < kBoxesDown * Plan::kSlotKColumns / 64; ++box) {
        ptx::load_tile(
            writer.address() + box * Plan::kBoxBytes, params.k_map,
            {column + box / kBoxesDown * 64, first_key + box % kBoxesDown * Plan::kBoxKvRows, work.kv_head, work.batch},
            writer.full());
      }
      writer.advance();
    }
  }

  // The block's columns x the keys of one box at a time.
  __device__ __forceinline__ void load_v(int step) {
    int key = work.first_key(step, Plan::kKeys);
#pragma unroll 1
    for (int slot = 0; slot < Plan::kVSlots; ++slot) {
      writer.open(Plan::kVSlotBytes);
#pragma unroll
      for (int group = 0; group < Plan::kBlockGroups; ++group) {
        ptx::load_tile(writer.address() + group * Plan::kBoxBytes, params.v_map,
                       {(block * Plan::kBlockGroups + group) * 64, key, work.kv_head, work.batch}, writer.full());
      }
      key += Plan::kSlotVKeys;
      writer.advance();
    }
  }

  __device__ __forceinline__ void run(u32 q, ptx::Mbarrier q_full) {
    if (work.steps == 0) return;
    load_q(q, q_full);
    // Step `steps` of K and step -1 of V do not exist.
#pragma unroll 1
    for (int step = 0; step <= work.steps; ++step) {
      if (step < work.steps) load_k(step);
      if (step > 0) load_v(step - 1);
    }
  }
};

// Brings K of `step` and V of the step before, as far as the block will load them, into the level-2 cache. The pairs
// that read the same keys at about the same time share the work: each does one box in kSharers.
template <class Plan>
__device__ __forceinline__ void prefetch(const abi::TmaAttentionParams& params, const TileWork& work, int block,
                                         int step) {
  constexpr int kSharers = 8;
  constexpr int kKBoxesDown = Plan::kBlockKeys / Plan::kBoxKvRows;
  constexpr int kVBoxesDown = Plan::kKeys / Plan::kBoxKvRows;
  const int first_box = blockIdx.x / Plan::kBlocks % kSharers;
  if (step < work.steps) {
    const int key = work.first_key(step, Plan::kKeys) + block * Plan::kBlockKeys;
#pragma unroll 1
    for (int box = first_box; box < Plan::kColumnGroups * kKBoxesDown; box += kSharers) {
      ptx::prefetch_tile(
          params.k_map, {box / kKBoxesDown * 64, key + box % kKBoxesDown * Plan::kBoxKvRows, work.kv_head, work.batch});
    }
  }
  if (step <= work.steps) {
    const int key = work.first_key(step - 1, Plan::kKeys);
    const int group = block * Plan::kBlockGroups;
#pragma unroll 1
    for (int box = first_box; box < Plan::kBlockGroups * kVBoxesDown; box += kSharers) {
      ptx::prefetch_tile(params.v_map, {(group + box / kVBoxesDown) * 64, key + box % kVBoxesDown * Plan::kBoxKvRows,
                                        work.kv_head, work.batch});
    }
  }
}

// The lane that carries this block's part of P to the other block of the pair, once a step. The pair's ring is short:
// it hides the latency of the level-2 cache but not that of memory, so the lane also has keys brought in ahead of the
// loads.
template <class Plan>
__device__ __forceinline__ void carry_p_to_peer(const abi::TmaAttentionParams& params, const SeesawBarriers& barriers,
                                                const TileWork& work, u32 own_p, int block) {
  const int peer = block ^ 1;
  const u32 peer_p = ptx::peer_address(own_p, peer);
  const u32 peer_full = ptx::peer_address(barriers.peer_p.address, peer);
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step) {
    if (step > 0) barriers.peer_p.wait((step - 1) & 1);  // else the arrival would count for the phase before
    barriers.peer_p.arrive_expect(Plan::kBlockPBytes);
    barriers.p_ready.wait(step & 1);  // so the consumers have waited for peer_done
    ptx::copy_to_peer(peer_p, own_p, Plan::kBlockPBytes, peer_full);
    prefetch<Plan>(params, work, block, step + 2);
  }
}

}  // namespace ffpa::hopper
