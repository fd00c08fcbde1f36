// Which query rows, head and keys a block works on.
#pragma once

#include "abi/attention_params.h"
#include "core/opaque.cuh"
#include "core/types.cuh"

namespace ffpa::native {

struct WorkTile {
  int batch;
  int head;
  int kv_head;
  int row0;      // first query row
  int kv_tiles;  // tiles of keys that some row of the tile attends to

  // Blocks of one head are neighbours, so that they find its K and V in L2. A causal row's work grows with its index:
  // the longest tiles of a head start first.
  __device__ WorkTile(const abi::AttentionParams& p, int tile_m, int tile_n) {
    const u32 q_tiles = static_cast<u32>(p.q_tiles);
    const u32 block = opaque(blockIdx.x);  // so that a second WorkTile is computed anew
    const u32 batch_head = block / q_tiles;
    const u32 place = block - batch_head * q_tiles;
    batch = static_cast<int>(batch_head / static_cast<u32>(p.heads));
    head = static_cast<int>(batch_head) - batch * p.heads;
    kv_head = head / p.group;
    row0 = static_cast<int>(p.causal ? q_tiles - 1 - place : place) * tile_m;
    int keys = p.kv_len;
    if (p.causal) {
      const int last_row = min(row0 + tile_m, p.q_len) - 1;
      keys = max(0, min(keys, last_row + p.causal_offset + 1));
    }
    kv_tiles = ceil_div(keys, tile_n);
  }
};

}  // namespace ffpa::native
