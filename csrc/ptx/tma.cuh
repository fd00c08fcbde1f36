// Tile loads by the bulk tensor copy engine.
#pragma once

#include "abi/attention_params.h"
#include "ptx/mbarrier.cuh"

namespace ffpa::ptx {

// Box coordinates in a [batch, head, row, column] tensor, innermost first as the tensor map counts them.
struct TileCoordinates {
  int column;
  int row;
  int head;
  int batch;
};

__device__ __forceinline__ void prefetch_tensor_map(const abi::TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Starts the load of one box into shared memory; `full` counts its bytes. What lies outside of the tensor becomes zero.
__device__ __forceinline__ void load_tile(u32 destination, const abi::TensorMap& map, TileCoordinates at,
                                          Mbarrier full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::"
      "complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(destination),
      "l"(&map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(full.address)
      : "memory");
}

// Brings a box into the level-2 cache.
__device__ __forceinline__ void prefetch_tile(const abi::TensorMap& map, TileCoordinates at) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(at.column),
               "r"(at.row), "r"(at.head), "r"(at.batch)
               : "memory");
}

}  // namespace ffpa::ptx
