// What a tile of query rows is made of, and the keys that it needs.
#pragma once

#include "abi/attention_params.h"
#include "core/types.cuh"
#include "kernels/hopper/tile_order.cuh"

namespace ffpa::hopper {

struct TileWork {
  int query_row;  // the first of the tile
  int head;
  int kv_head;
  int batch;
  int key_end;  // keys key_end.. are visible to no row of the tile
  int steps;    // ceil(key_end / keys a step); 0: nothing is visible

  // The tile that `order` is at, of kTileRows queries.
  template <int kTileRows, int kStepKeys, class Order>
  static __device__ __forceinline__ TileWork of_tile(const abi::AttentionParams& a, const Order& order) {
    u32 head;
    u32 tile;
    order.find(head, tile);
    TileWork work;
    work.query_row = static_cast<int>(tile) * kTileRows;
    work.batch = static_cast<int>(head / a.heads);
    work.head = static_cast<int>(head - static_cast<u32>(work.batch) * a.heads);
    work.kv_head = work.head / a.group;
    work.key_end = a.kv_len;
    if (order.causal()) {
      const int last_row = min(work.query_row + kTileRows, a.q_len) - 1;
      work.key_end = max(0, min(a.kv_len, last_row + a.causal_offset + 1));
    }
    work.steps = (work.key_end + kStepKeys - 1) / kStepKeys;
    return work;
  }

  // The first key of a step. Steps run from the last keys to the first: those that need masking come first.
  __device__ __forceinline__ int first_key(int step, int step_keys) const { return (steps - 1 - step) * step_keys; }
};

}  // namespace ffpa::hopper
