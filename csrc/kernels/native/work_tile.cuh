// Which query rows, head and keys a block works on. The types of work tile share their members; a row `r` counts from
// the tile's first. Blocks recompute a work tile where they need it again: the main loop has no registers to keep it.
#pragma once

#include "abi/attention_params.h"
#include "core/opaque.cuh"
#include "core/types.cuh"

namespace ffpa::native {

// Prefill: kTileM consecutive rows of one head, all its keys. Grid: q_tiles * heads * batch.
template <class T>
struct PrefillWork {
  int batch;
  int head;
  int kv_head;
  int row0;
  static constexpr int kv_begin = 0;  // tiles of keys, from .. to
  int kv_tiles;

  // Blocks of one head are neighbours, so that they find its K and V in L2. A causal row's work grows with its index:
  // the longest tiles of a head start first.
  __device__ explicit PrefillWork(const abi::AttentionParams& p) {
    const u32 q_tiles = static_cast<u32>(p.q_tiles);
    const u32 block = opaque(blockIdx.x);
    const u32 batch_head = block / q_tiles;
    const u32 place = block - batch_head * q_tiles;
    batch = static_cast<int>(batch_head / static_cast<u32>(p.heads));
    head = static_cast<int>(batch_head) - batch * p.heads;
    kv_head = head / p.group;
    row0 = static_cast<int>(p.causal ? q_tiles - 1 - place : place) * T::kTileM;
    int keys = p.kv_len;
    if (p.causal) {
      const int last_row = min(row0 + T::kTileM, p.q_len) - 1;
      keys = max(0, min(keys, last_row + p.causal_offset + 1));
    }
    kv_tiles = ceil_div(keys, T::kTileN);
  }

  __device__ bool valid(const abi::AttentionParams& p, int r) const { return row0 + r < p.q_len; }
  __device__ int query(const abi::AttentionParams&, int r) const { return row0 + r; }
  __device__ int head_of(const abi::AttentionParams&, int) const { return head; }
  __device__ int first_query() const { return row0; }
  // Elements from the mask's base to the tile's first row, from there to row `r`, and from that to the `n`-th after it.
  __device__ i64 mask_origin(const abi::AttentionParams& p) const {
    return batch * p.mask_stride.batch + head * p.mask_stride.head + row0 * p.mask_stride.row;
  }
  __device__ i64 mask_row(const abi::AttentionParams& p, u32 r) const { return r * p.mask_stride.row; }
  __device__ i64 mask_rows(const abi::AttentionParams& p, int, int n) const { return n * p.mask_stride.row; }
  static __device__ bool one_mask_row(const abi::AttentionParams& p) { return p.mask_stride.row == 0; }
};

// Decode: up to 16 of the group * q_len rows that share a KV head (row = head in group * q_len + query), and one split
// of the keys. Grid: splits * q_tiles * kv_heads * batch, where q_tiles = ceil(group * q_len / 16).
template <class T>
struct DecodeWork {
  int batch;
  int kv_head;
  int row0;
  int split;
  int kv_begin;
  int kv_tiles;

  __device__ explicit DecodeWork(const abi::AttentionParams& p) {
    u32 block = opaque(blockIdx.x);
    split = static_cast<int>(block % static_cast<u32>(p.splits));
    block /= static_cast<u32>(p.splits);
    row0 = static_cast<int>(block % static_cast<u32>(p.q_tiles)) * T::kTileM;
    block /= static_cast<u32>(p.q_tiles);
    kv_head = static_cast<int>(block % static_cast<u32>(p.kv_heads));
    batch = static_cast<int>(block / static_cast<u32>(p.kv_heads));
    const int keys = p.causal ? max(0, min(p.kv_len, p.q_len + p.causal_offset)) : p.kv_len;
    const int tiles_split = p.kv_per_split / T::kTileN;
    kv_begin = split * tiles_split;
    kv_tiles = min(kv_begin + tiles_split, ceil_div(keys, T::kTileN));
  }

  __device__ bool valid(const abi::AttentionParams& p, int r) const { return row0 + r < p.group * p.q_len; }
  __device__ int query(const abi::AttentionParams& p, int r) const { return (row0 + r) % p.q_len; }
  __device__ int head_of(const abi::AttentionParams& p, int r) const {
    return kv_head * p.group + (row0 + r) / p.q_len;
  }
  __device__ int first_query() const { return 0; }
  __device__ i64 mask_origin(const abi::AttentionParams& p) const { return batch * p.mask_stride.batch; }
  __device__ i64 mask_row(const abi::AttentionParams& p, u32 r) const {
    return head_of(p, r) * p.mask_stride.head + query(p, r) * p.mask_stride.row;
  }
  __device__ i64 mask_rows(const abi::AttentionParams& p, int r, int n) const {
    return n == 0 ? 0 : mask_row(p, r + n) - mask_row(p, r);
  }
  static __device__ bool one_mask_row(const abi::AttentionParams& p) {
    return p.mask_stride.row == 0 && p.mask_stride.head == 0;
  }
};

}  // namespace ffpa::native
