// Which tile a block computes, and the keys that it needs.
#pragma once

#include "abi/attention_params.h"

namespace ffpa::hopper {

struct TileWork {
  int query_row;  // the first of the tile
  int head;
  int kv_head;
  int batch;
  int key_end;  // keys key_end.. are visible to no row of the tile
  int steps;    // ceil(key_end / keys a step); 0: nothing is visible

  // The one-dimensional grid runs over query tiles, then heads, then batches, so that blocks which run together share K
  // and V. Causal tiles of a head run longest first; the short ones of the last head fill the tail of the grid.
  static __device__ __forceinline__ TileWork of_block(const abi::AttentionParams& a, int tile_rows, int step_keys) {
    TileWork work;
    const unsigned block = blockIdx.x;
    const unsigned q_tiles = a.q_tiles;
    const unsigned head_index = block / q_tiles;
    const unsigned tile = block - head_index * q_tiles;
    work.query_row = static_cast<int>(a.causal ? q_tiles - 1 - tile : tile) * tile_rows;
    work.batch = static_cast<int>(head_index / a.heads);
    work.head = static_cast<int>(head_index - static_cast<unsigned>(work.batch) * a.heads);
    work.kv_head = work.head / a.group;
    work.key_end = a.kv_len;
    if (a.causal) {
      const int last_row = min(work.query_row + tile_rows, a.q_len) - 1;
      work.key_end = max(0, min(a.kv_len, last_row + a.causal_offset + 1));
    }
    work.steps = (work.key_end + step_keys - 1) / step_keys;
    return work;
  }

  // The first key of a step. Steps run from the last keys to the first: those that need masking come first.
  __device__ __forceinline__ int first_key(int step, int step_keys) const { return (steps - 1 - step) * step_keys; }
};

}  // namespace ffpa::hopper
