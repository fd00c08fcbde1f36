// The order of query tiles, and which of them a block computes.
#pragma once

#include "abi/attention_params.h"
#include "core/types.cuh"

namespace ffpa::hopper {

// Who gives tiles to blocks.
enum class Deal {
  hardware,    // a block a tile: the next tile to whichever multiprocessor is free
  persistent,  // a block a multiprocessor, each with a fixed share of the tiles
};

// A block's way through the tiles, q_tiles for each head of each batch.
//
// Without any mask the query tiles of a head follow each other, so that blocks which run together share K and V. Causal
// tiles are of unequal length: within a group of heads all heads' longest tiles come first. Within a group, too, heads
// share the rows of a mask tensor; with one a call is never causal.
//
// A persistent grid deals tiles out in rounds, from alternating ends, and causal ones group by group, so that every
// block gets as many of a group's long tiles: shares are even without a counter in global memory. A step is cheap,
// since consumers stop for it: what takes divisions and does not change is worked out once, where there are registers
// for it.
template <Deal kDeal, bool kMasked>
class TileOrder {
 public:
  __device__ __forceinline__ TileOrder(const abi::AttentionParams& a, u32 q_tiles, u32 first_place)
      : a_(a), q_tiles_(q_tiles), place_(first_place) {
    if constexpr (kMasked) return;
    causal_ = a.causal;
    dealt_heads_ = causal_ ? grouped() : heads();
    if constexpr (kDeal == Deal::persistent) rounds_ = (q_tiles * dealt_heads_ + gridDim.x - 1) / gridDim.x;
  }

  __device__ __forceinline__ bool causal() const { return causal_; }
  __device__ __forceinline__ bool at_end() const { return first_head_ >= heads(); }

  // To the block's next tile.
  __device__ __forceinline__ void advance() {
    ++round_;
    if constexpr (kDeal == Deal::hardware) {
      first_head_ = heads();
    } else if constexpr (kMasked) {
      place_ = place_in(round_);
      first_head_ = place_ < q_tiles_ * heads() ? 0 : heads();
    } else {
      for (; first_head_ < heads(); first_head_ += dealt_heads_, rounds_before_ += rounds_, round_ = 0) {
        place_ = place_in(rounds_before_ + round_) - rounds_before_ * gridDim.x;
        if (place_ < q_tiles_ * min(dealt_heads_, heads() - first_head_)) return;
      }
    }
  }

  // The head of the tile, counted over all batches, and the tile's number among those of the head.
  __device__ __forceinline__ void find(u32& head, u32& tile) const {
    if (kMasked || (kDeal == Deal::hardware && causal_)) {  // places are those among all tiles
      const u32 group = kMasked ? grouped() : dealt_heads_;
      const u32 first = place_ / (q_tiles_ * group) * group;
      find_in_group(first, min(group, heads() - first), place_ - first * q_tiles_, head, tile);
    } else if (causal_) {
      find_in_group(first_head_, min(dealt_heads_, heads() - first_head_), place_, head, tile);
    } else {
      head = place_ / q_tiles_;
      tile = place_ - head * q_tiles_;
    }
  }

 private:
  const abi::AttentionParams& a_;
  u32 q_tiles_;
  u32 dealt_heads_;  // as one: a group's if causal, else all
  u32 rounds_;       // in which they are dealt out
  bool causal_ = false;

  u32 first_head_ = 0;  // of those dealt out now
  u32 rounds_before_ = 0;
  u32 round_ = 0;
  u32 place_;  // of the block's tile among those dealt out now

  __device__ __forceinline__ u32 heads() const { return static_cast<u32>(a_.heads) * a_.batch; }

  static __device__ __forceinline__ u32 place_in(u32 round) {
    return round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  }

  __device__ __forceinline__ void find_in_group(u32 first_head, u32 group_heads, u32 place, u32& head,
                                                u32& tile) const {
    const u32 rank = place / group_heads;
    head = first_head + place - rank * group_heads;
    tile = causal_ ? q_tiles_ - 1 - rank : rank;
  }

  // Heads in a group: as many as the level-2 cache holds K and V of; about half of it is counted on. A persistent grid
  // needs one and a half rounds in a causal group to even out, and groups of one size, since a smaller one at the end
  // starts with long tiles again.
  __device__ __forceinline__ u32 grouped() const {
    constexpr float kCachedElements = 8 << 20;  // of K, and as many of V: 32 MiB
    const float kv_heads = kCachedElements / (static_cast<float>(a_.kv_len) * static_cast<float>(a_.head_dim));
    u32 size = min(max(1u, static_cast<u32>(kv_heads)) * a_.group, heads());
    if constexpr (kDeal == Deal::persistent && !kMasked) {
      size = max(size, (gridDim.x * 3 / 2 + q_tiles_ - 1) / q_tiles_);
      const u32 groups = max(1u, heads() / size);
      size = (heads() + groups - 1) / groups;
      size = (size + a_.group - 1) / a_.group * a_.group;
    }
    return min(size, heads());
  }
};

}  // namespace ffpa::hopper
