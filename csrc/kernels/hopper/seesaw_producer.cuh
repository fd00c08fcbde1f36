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

// The lane that carries this block's part of P to the other block of the pair, once a step.
template <class Plan>
__device__ __forceinline__ void carry_p_to_peer(const SeesawBarriers& barriers, const TileWork& work, u32 own_p,
                                                int peer) {
  const u32 peer_p = ptx::peer_address(own_p, peer);
  const u32 peer_full = ptx::peer_address(barriers.peer_p.address, peer);
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step) {
    if (step > 0) barriers.peer_p.wait((step - 1) & 1);  // else the arrival would count for the phase before
    barriers.peer_p.arrive_expect(Plan::kBlockPBytes);
    barriers.p_ready.wait(step & 1);  // so the consumers have waited for peer_done
    ptx::copy_to_peer(peer_p, own_p, Plan::kBlockPBytes, peer_full);
  }
}

}  // namespace ffpa::hopper
