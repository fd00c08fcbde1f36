// Tiles of a mask tensor in shared memory, for the bm128 kernel: a loader warp for each consumer warpgroup copies the
// warpgroup's 64 rows of the next step while the step before is computed.
#pragma once

#include "core/opaque.cuh"
#include "kernels/hopper/mask_tensor.cuh"
#include "kernels/hopper/slot_ring.cuh"
#include "kernels/hopper/softmax.cuh"
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

  // From a unit's address to that of the same unit in another row: the permutation changes by half of kClash.
  static __device__ __forceinline__ u32 four_rows_down(u32 address) {
    return (address ^ kClash / 2 * 16) + 4 * kRowBytes;
  }

  // The place of 16 bytes of a row.
  static __device__ __forceinline__ u32 unit(u32 row, u32 unit) {
    return row * kRowBytes + ((unit ^ permutation(row)) << 4);
  }
};

// Of a mask that is the same for all rows the first one is enough.
__device__ __forceinline__ bool has_one_row(const abi::AttentionParams& a) { return a.mask_stride.row == 0; }

// The warp that keeps one consumer warpgroup's ring of mask tiles filled. `full` counts one arrival of each lane. The
// warp has few registers: what a tile needs is worked out anew for each.
template <class Plan>
struct MaskLoader {
  const abi::AttentionParams& a;
  RingWriter<Plan::kMaskSlots, Plan::kMaskBytes> writer;
  int warpgroup;

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (typename Plan::Order order(a, a.q_tiles, blockIdx.x); !order.at_end(); order.advance()) load_tile(order);
    ptx::cp_async_wait<0>();
  }

 private:
  __device__ __forceinline__ void load_tile(const typename Plan::Order& order) {
    const TileWork work = TileWork::of_tile<Plan::kRows, Plan::kKeys>(a, order);
    if (a.mask_kind == abi::MaskKind::boolean) {
      load_steps<u8>(work);
    } else {
      load_steps<u16>(work);
    }
  }

  // Copies go 16 bytes at a time, eight lanes a row.
  template <class Bits>
  __device__ __forceinline__ void load_steps(const TileWork& work) {
    const int key = work.first_key(0, Plan::kKeys);
    const int query = work.query_row + 64 * warpgroup;
    const Bits* from = HeadMask<Bits>(a, work).at(query + lane_row(), key + lane_unit() * (16 / sizeof(Bits)));
    const int rows = a.q_len - query;  // that exist, perhaps more than the tile has; columns likewise
    int columns = a.kv_len - key;
#pragma unroll 1
    for (; columns <= a.kv_len; columns += Plan::kKeys) {
      writer.wait_free();
      if (rows >= 64 && columns >= Plan::kKeys) {
        copy_whole(from);
      } else {
        copy_existing(from, rows, columns);
      }
      ptx::cp_async_arrive(writer.full().address);
      writer.advance();
      from -= Plan::kKeys;
    }
  }

  // In fours.
  __device__ __forceinline__ int copied_rows() const { return has_one_row(a) ? 4 : 64; }
  static __device__ __forceinline__ int lane_row() { return threadIdx.x % 32 / 8; }
  static __device__ __forceinline__ int lane_unit() { return threadIdx.x % 8; }

  // Whether the lane has a unit in the group of eight that starts at `right`.
  template <class Tile>
  static __device__ __forceinline__ bool takes_part(int right) {
    return right + 8 <= Tile::kUnits || lane_unit() < Tile::kUnits - right;
  }

  template <class Bits>
  __device__ __forceinline__ void copy_whole(const Bits* source) const {
    using Tile = MaskTile<Bits, Plan::kKeys>;
    u32 target = writer.address() + Tile::unit(lane_row(), lane_unit());
#pragma unroll 1
    for (int down = copied_rows(); down > 0; down -= 4) {
#pragma unroll
      for (int right = 0; right < Tile::kUnits; right += 8) {
        if (takes_part<Tile>(right)) ptx::cp_async<16>(target + right * 16, source + right * (16 / sizeof(Bits)));
      }
      source += 4 * a.mask_stride.row;
      target = Tile::four_rows_down(target);
    }
  }

  // What does not exist becomes zero: leftovers in rows that nobody reads could still be so large as to change how the
  // warp rounds.
  template <class Bits>
  __device__ __forceinline__ void copy_existing(const Bits* source, int rows, int columns) const {
    using Tile = MaskTile<Bits, Plan::kKeys>;
    constexpr int kUnitKeys = 16 / sizeof(Bits);
    u32 target = writer.address() + Tile::unit(lane_row(), lane_unit());
#pragma unroll 1
    for (int row = lane_row(); row < copied_rows(); row += 4) {
#pragma unroll
      for (int right = 0; right < Tile::kUnits; right += 8) {
        const int bytes = (opaque(columns) - (right + lane_unit()) * kUnitKeys) * static_cast<int>(sizeof(Bits));
        if (takes_part<Tile>(right)) {
          ptx::cp_async_partial<16>(target + right * 16, source + right * kUnitKeys,
                                    row < rows ? max(0, min(bytes, 16)) : 0);
        }
      }
      source += 4 * a.mask_stride.row;
      target = Tile::four_rows_down(target);
    }
  }
};

// A consumer's view of its warpgroup's ring. `empty` counts one arrival of each thread, which racecheck understands.
template <class Element, class Plan>
struct MaskReader {
  static constexpr int kPairs = Plan::kKeys / 4;  // a thread

  SlotRing<Plan::kMaskSlots, Plan::kMaskBytes> ring;
  u32 turn = 0;       // how many tiles were read; a place in the ring would take two registers
  u32 pairs[kPairs];  // of a step, as the scores lie; where Plan::kEarlyMask

  // Brings the mask of the next step into registers.
  __device__ __forceinline__ void fetch(const abi::AttentionParams& a) {
    const u32 tile = open();
    if (a.mask_kind == abi::MaskKind::boolean) {
      each_pair(a, tile, u8{}, [this](int i, u32 pair) { pairs[i] = pair; });
    } else {
      each_pair(a, tile, u16{}, [this](int i, u32 pair) { pairs[i] = pair; });
    }
    close(pairs[kPairs - 1]);
  }

  // To the scores of the step fetched.
  __device__ __forceinline__ void apply_fetched(const abi::AttentionParams& a, float* s) const {
    if (a.mask_kind == abi::MaskKind::boolean) {
      apply_sign<2 * kPairs>(s, a.scale_log2);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) mask_pair<Element, u8>(s[2 * i], s[2 * i + 1], pairs[i], a.scale);
    } else {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) mask_pair<Element, u16>(s[2 * i], s[2 * i + 1], pairs[i], a.scale);
    }
  }

  // Both, a few pairs at a time.
  __device__ __forceinline__ void apply(const abi::AttentionParams& a, float* s) {
    const u32 tile = open();
    const float scale = a.scale;
    u32 last;
    if (a.mask_kind == abi::MaskKind::boolean) {
      apply_sign<2 * kPairs>(s, a.scale_log2);
      each_pair(a, tile, u8{}, [&](int i, u32 pair) {
        mask_pair<Element, u8>(s[2 * i], s[2 * i + 1], pair, scale);
        last = pair;
      });
    } else {
      each_pair(a, tile, u16{}, [&](int i, u32 pair) {
        mask_pair<Element, u16>(s[2 * i], s[2 * i + 1], pair, scale);
        last = pair;
      });
    }
    close(last);
  }

 private:
  // The address of the next tile, once it is there.
  __device__ __forceinline__ u32 open() const {
    const int slot = turn % Plan::kMaskSlots;
    ring.full(slot).wait(turn / Plan::kMaskSlots & 1);
    return ring.address(slot);
  }

  // Gives the tile back once `last_read` is there. Nothing else would make the arrival wait for the reads before it,
  // which take another way through the multiprocessor: its address depends on that value, by a number that is always 0.
  __device__ __forceinline__ void close(u32 last_read) {
    const ptx::Mbarrier empty = ring.empty(turn % Plan::kMaskSlots);
    ptx::Mbarrier{empty.address + (last_read & blockIdx.z)}.arrive();
    ++turn;
  }

  static __device__ __forceinline__ u32 warp_row() { return threadIdx.x % 128 / 32 * 16; }

  // Calls f(i, pair) for the mask of scores 2 * i and 2 * i + 1.
  template <class F>
  __device__ __forceinline__ void each_pair(const abi::AttentionParams& a, u32 address, u16, F f) const {
    using Tile = MaskTile<u16, Plan::kKeys>;
    // Matrices: rows 0..7 and 8..15 of the first 8 columns, the same of the next 8.
    const u32 row = has_one_row(a) ? 0 : warp_row() + threadIdx.x % 16;
    const u32 line = address + row * Tile::kRowBytes;
    const u32 unit = threadIdx.x % 32 / 16 ^ Tile::permutation(row);
#pragma unroll
    for (int k = 0; k < kPairs / 4; ++k) {
      u32 four[4];
      ptx::ldmatrix_x4(four, line + ((unit ^ 2 * k) << 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) f(4 * k + i, four[i]);
    }
  }

  template <class F>
  __device__ __forceinline__ void each_pair(const abi::AttentionParams& a, u32 address, u8, F f) const {
    using Tile = MaskTile<u8, Plan::kKeys>;
    const u32 row = has_one_row(a) ? 0 : warp_row() + threadIdx.x % 32 / 4;
    const u32 down = has_one_row(a) ? 0 : 8 * Tile::kRowBytes;  // to the thread's other row, which is permuted alike
    const u32 line = address + row * Tile::kRowBytes + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kPairs / 2; ++i) {
      const u32 place = line + ((i / 2 ^ Tile::permutation(row)) << 4) + i % 2 * 8;
      f(2 * i, ptx::load_shared_u16(place));
      f(2 * i + 1, ptx::load_shared_u16(place + down));
    }
  }
};

}  // namespace ffpa::hopper
