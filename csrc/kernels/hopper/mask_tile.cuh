// Tiles of a mask tensor in shared memory, for the bm128 kernel: a loader warp for each consumer warpgroup copies the
// warpgroup's 64 rows of the next step while the step before is computed.
#pragma once

#include "kernels/hopper/mask_tensor.cuh"
#include "kernels/hopper/slot_ring.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/memory.cuh"

namespace ffpa::hopper {

// 64 rows x kKeys elements, row after row. The 16-byte units of a row are permuted so that those which eight rows hold
// at the same place lie in different banks.
template <class Bits, int kKeys>
struct MaskTile {
  static constexpr int kRows = 64;
  static constexpr int kRowBytes = kKeys * sizeof(Bits);
  static constexpr int kUnits = kRowBytes / 16;
  static_assert(kRowBytes % 16 == 0);

  // Of eight rows, those whose starts fall on the same banks; each of them has another permutation.
  static constexpr int kClash = kUnits % 8 == 0 ? 8 : kUnits % 4 == 0 ? 4 : kUnits % 2 == 0 ? 2 : 1;

  static __device__ __forceinline__ u32 permutation(u32 row) { return row / (8 / kClash) % kClash; }

  // The place of 16 bytes of a row.
  static __device__ __forceinline__ u32 unit(u32 row, u32 unit) {
    return row * kRowBytes + ((unit ^ permutation(row)) << 4);
  }
};

// The warp that keeps one consumer warpgroup's ring of mask tiles filled. `full` counts one arrival of each lane. The
// warp has few registers: what a tile needs is worked out anew for each.
template <class Plan>
struct MaskLoader {
  const abi::AttentionParams& a;
  RingWriter<Plan::kMaskSlots, Plan::kMaskBytes> writer;
  int warpgroup;

  __device__ __forceinline__ void run() {
    if constexpr (Plan::kPersistent) {
#pragma unroll 1
      for (TileSequence sequence(a); !sequence.at_end(); sequence.advance()) load_tile(sequence.index);
    } else {
      load_tile(blockIdx.x);
    }
    ptx::cp_async_wait<0>();
  }

 private:
  __device__ __forceinline__ void load_tile(u32 index) {
    const TileWork work = TileWork::of_tile<Plan::kHeadGroup, Plan::kRows, Plan::kKeys, true>(a, a.q_tiles, index);
    if (a.mask_kind == abi::MaskKind::boolean) {
      load_steps<u8>(work);
    } else {
      load_steps<u16>(work);
    }
  }

  // Copies go 16 bytes at a time, eight lanes a row. What does not exist becomes zero: leftovers in rows that nobody
  // reads could still be so large as to change how the warp rounds.
  template <class Bits>
  __device__ __forceinline__ void load_steps(const TileWork& work) {
    using Tile = MaskTile<Bits, Plan::kKeys>;
    constexpr int kUnitKeys = 16 / sizeof(Bits);
    const int row = threadIdx.x % 32 / 8;
    const int unit = threadIdx.x % 8;
    const int query = work.query_row + 64 * warpgroup + row;
    const int rows = a.q_len - query;  // from the lane's first on
    int key = work.first_key(0, Plan::kKeys);
    const Bits* from = HeadMask<Bits>(a, work).at(query, key + unit * kUnitKeys);
#pragma unroll 1
    for (; key >= 0; key -= Plan::kKeys) {
      writer.wait_free();
      const Bits* source = from;
      u32 target = writer.address() + Tile::unit(row, unit);
#pragma unroll 1
      for (int down = 0; down < Tile::kRows; down += 4) {
#pragma unroll
        for (int right = 0; right < Tile::kUnits; right += 8) {
          const int bytes = (a.kv_len - key - (right + unit) * kUnitKeys) * static_cast<int>(sizeof(Bits));
          if (right + 8 <= Tile::kUnits || unit < Tile::kUnits - right) {
            ptx::cp_async_16_partial(target + right * 16, source + right * kUnitKeys,
                                     down < rows ? max(0, min(bytes, 16)) : 0);
          }
        }
        source += 4 * a.mask_stride.row;
        target = (target ^ Tile::kClash / 2 * 16) + 4 * Tile::kRowBytes;  // the permutation of the row 4 further down
      }
      ptx::cp_async_arrive(writer.full().address);
      writer.advance();
      from -= Plan::kKeys;
    }
  }
};

// A consumer's view of its warpgroup's ring. `empty` counts one arrival of each thread, which racecheck understands.
template <class Element, class Plan>
struct MaskReader {
  SlotRing<Plan::kMaskSlots, Plan::kMaskBytes> ring;
  u32 turn = 0;  // how many tiles were read; a place in the ring would take two registers

  // Scores of the next step, raw dot products, become scale * score + mask.
  template <int kScores>
  __device__ __forceinline__ void apply(const abi::AttentionParams& a, float* s) {
    const int slot = turn % Plan::kMaskSlots;
    ring.full(slot).wait(turn / Plan::kMaskSlots & 1);
    ++turn;
    const u32 address = ring.address(slot);
    if (a.mask_kind == abi::MaskKind::boolean) {
      apply_boolean<kScores>(s, address, a.scale);
    } else {
      apply_additive<kScores>(s, address, a.scale);
    }
    ring.empty(slot).arrive();
  }

 private:
  static __device__ __forceinline__ u32 warp_row() { return threadIdx.x % 128 / 32 * 16; }

  template <int kScores>
  __device__ __forceinline__ void apply_additive(float* s, u32 address, float scale) const {
    using Tile = MaskTile<u16, Plan::kKeys>;
    // Matrices: rows 0..7 and 8..15 of the first 8 columns, the same of the next 8.
    const u32 row = warp_row() + threadIdx.x % 16;
    const u32 line = address + row * Tile::kRowBytes;
    const u32 unit = threadIdx.x % 32 / 16 ^ Tile::permutation(row);
#pragma unroll
    for (int k = 0; k < kScores / 8; ++k) {
      u32 pairs[4];
      ptx::ldmatrix_x4(pairs, line + ((unit ^ 2 * k) << 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mask_pair<Element, u16>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1], pairs[i], scale);
      }
    }
  }

  template <int kScores>
  __device__ __forceinline__ void apply_boolean(float* s, u32 address, float scale) const {
    using Tile = MaskTile<u8, Plan::kKeys>;
    const u32 row = warp_row() + threadIdx.x % 32 / 4;  // and 8 further down, which is permuted alike
    const u32 line = address + row * Tile::kRowBytes + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      const u32 place = line + ((i / 2 ^ Tile::permutation(row)) << 4) + i % 2 * 8;
      mask_pair<Element, u8>(s[4 * i], s[4 * i + 1], ptx::load_shared_u16(place), scale);
      mask_pair<Element, u8>(s[4 * i + 2], s[4 * i + 3], ptx::load_shared_u16(place + 8 * Tile::kRowBytes), scale);
    }
  }
};

}  // namespace ffpa::hopper
