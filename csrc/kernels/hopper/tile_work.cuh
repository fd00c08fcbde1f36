// Which tile a block computes, and the keys that it needs.
#pragma once

#include "abi/attention_params.h"
#include "core/types.cuh"

namespace ffpa::hopper {

// How many heads' tiles are dealt out together. The more heads, the better the short causal tiles at the end even out
// when blocks finish, and the more blocks read the same rows of a mask; the fewer, the more read the same K and V.
enum class HeadGroup {
  cached,  // as many heads as the level-2 cache holds K and V of; for grids that
           // the hardware deals out
  wide,    // a fixed, larger number; for persistent grids, whose static shares
           // must be even
};

struct TileWork {
  int query_row;  // the first of the tile
  int head;
  int kv_head;
  int batch;
  int key_end;  // keys key_end.. are visible to no row of the tile
  int steps;    // ceil(key_end / keys a step); 0: nothing is visible

  // Heads in a group; about half of the cache is counted on.
  template <HeadGroup kGroup, int kTileRows>
  static __device__ __forceinline__ u32 group_size(const abi::AttentionParams& a) {
    constexpr float kCachedElements = 8 << 20;  // of K, and as many of V: 32 MiB
    if constexpr (kGroup == HeadGroup::wide) return kTileRows / 4;
    const float kv_heads = kCachedElements / (static_cast<float>(a.kv_len) * static_cast<float>(a.head_dim));
    return max(1u, static_cast<u32>(kv_heads)) * a.group;
  }

  // Tile `index` of q_tiles x heads x batch, q_tiles of kTileRows queries. Without any mask the query tiles of a head
  // follow each other, so that blocks which run together share K and V. Causal tiles are of unequal length: within a
  // group of heads all heads' longest tiles come first. Within a group, too, heads share the rows of a mask tensor;
  // with one a call is never causal.
  template <HeadGroup kGroup, int kTileRows, int kStepKeys, bool kMasked>
  static __device__ __forceinline__ TileWork of_tile(const abi::AttentionParams& a, u32 q_tiles, u32 index) {
    u32 head_index;
    u32 tile;
    const bool causal = !kMasked && a.causal;
    if (kMasked || causal) {
      const u32 all_heads = static_cast<u32>(a.heads) * a.batch;
      const u32 full_group = min(group_size<kGroup, kTileRows>(a), all_heads);
      const u32 first_head = index / (q_tiles * full_group) * full_group;
      const u32 group_heads = min(full_group, all_heads - first_head);
      const u32 place = index - first_head * q_tiles;
      const u32 rank = place / group_heads;
      tile = causal ? q_tiles - 1 - rank : rank;
      head_index = first_head + place - rank * group_heads;
    } else {
      head_index = index / q_tiles;
      tile = index - head_index * q_tiles;
    }
    TileWork work;
    work.query_row = static_cast<int>(tile) * kTileRows;
    work.batch = static_cast<int>(head_index / a.heads);
    work.head = static_cast<int>(head_index - static_cast<u32>(work.batch) * a.heads);
    work.kv_head = work.head / a.group;
    work.key_end = a.kv_len;
    if (causal) {
      const int last_row = min(work.query_row + kTileRows, a.q_len) - 1;
      work.key_end = max(0, min(a.kv_len, last_row + a.causal_offset + 1));
    }
    work.steps = (work.key_end + kStepKeys - 1) / kStepKeys;
    return work;
  }

  // The first key of a step. Steps run from the last keys to the first: those that need masking come first.
  __device__ __forceinline__ int first_key(int step, int step_keys) const { return (steps - 1 - step) * step_keys; }
};

// The tiles of a block of a persistent grid: one of every gridDim.x, from alternating ends, which shares out causal
// tiles evenly without a counter in global memory.
struct TileSequence {
  const abi::AttentionParams& a;
  u32 index = blockIdx.x;  // the only state: consumers have no register to spare for it

  __device__ __forceinline__ explicit TileSequence(const abi::AttentionParams& a) : a(a) {}

  // A block has no tile after the first that does not exist: the ends alternate within one last, incomplete round.
  __device__ __forceinline__ bool at_end() const { return index >= static_cast<u32>(a.q_tiles) * a.heads * a.batch; }

  __device__ __forceinline__ void advance() {
    const u32 round = index / gridDim.x + 1;
    index = round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  }
};

}  // namespace ffpa::hopper
