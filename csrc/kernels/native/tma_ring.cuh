// The stream of kv_ring.cuh, filled by the bulk tensor copy engine: one thread asks for the boxes, mbarriers say when a
// slot is full and when every warp has read it. The engine writes zeros where a box leaves the tensor, and swizzles as
// boxes are swizzled.
#pragma once

#include "abi/attention_params.h"
#include "core/opaque.cuh"
#include "core/swizzle.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"

namespace ffpa::native {

// Where the slots and their barriers lie: the shared memory of T, then full[kStages] and empty[kStages].
template <class T>
struct TmaSlots {
  static constexpr int kBarrierOffset = T::kSmemBytes;
  static constexpr int kSmemBytes = kBarrierOffset + 16 * T::kStages;
  static_assert(kBarrierOffset % 8 == 0);

  u32 smem;

  __device__ __forceinline__ ptx::Mbarrier full(u32 slot) const { return {smem + kBarrierOffset + 8 * slot}; }
  __device__ __forceinline__ ptx::Mbarrier empty(u32 slot) const { return full(slot + T::kStages); }
  __device__ __forceinline__ u32 address(u32 slot) const { return smem + T::kRingOffset + slot * T::kStageBytes; }

  // By all threads of the block.
  __device__ __forceinline__ void init() const {
    if (opaque(threadIdx.x) == 0) {
#pragma unroll
      for (int slot = 0; slot < T::kStages; ++slot) {
        full(slot).init(1);
        empty(slot).init(T::kThreads / 32);
      }
      ptx::fence_mbarrier_init();
    }
    ptx::block_sync();
  }
};

// What the one thread that asks for boxes knows.
template <class T>
struct TmaLoader {
  const abi::TmaAttentionParams& p;
  typename T::Work work;
  TmaSlots<T> slots;

  // Q, which the first step of K brings along: slot 0 is full when both are there.
  __device__ __forceinline__ void load_q() const {
    slots.full(0).expect(T::kQBytes);
#pragma unroll 1
    for (int box = 0; box < T::kBoxes; ++box) {
      ptx::load_tile(slots.smem + T::kQOffset + box * (T::kTileM * kBoxRowBytes), p.q_map,
                     {box * kBoxCols, work.row0, work.head, work.batch}, slots.full(0));
    }
  }

  // Step `step` of K, or of V, into an empty slot.
  __device__ __forceinline__ void load_step(const abi::TensorMap& map, int tile, int step, u32 slot) const {
    slots.full(slot).arrive_expect(T::kStageBytes);
#pragma unroll
    for (int box = 0; box < T::kStepBoxes; ++box) {
      ptx::load_tile(slots.address(slot) + box * T::kBoxBytes, map,
                     {step * T::kStepCols + box * kBoxCols, tile * T::kTileN, work.kv_head, work.batch},
                     slots.full(slot));
    }
  }
};

// The slot of a step and the parity of its turn. Computed from the step's number, so that nothing is kept in registers
// from step to step; where a tile is whole rounds of the ring, the slot is known when compiling.
template <class T>
struct RingPlace {
  u32 slot;
  u32 parity;

  __device__ __forceinline__ RingPlace(int tile, int step) {
    constexpr int kTileSteps = 2 * T::kSteps;
    if constexpr (kTileSteps % T::kStages == 0) {
      slot = step % T::kStages;
      parity = (tile * (kTileSteps / T::kStages) + step / T::kStages) & 1;
    } else {
      const u32 count = static_cast<u32>(tile) * kTileSteps + step;
      slot = count % T::kStages;
      parity = count / T::kStages & 1;
    }
  }
};

// The ring as warps see it that only read it.
template <class T>
class TmaReader {
 public:
  __device__ explicit TmaReader(TmaSlots<T> slots) : slots_(slots) {}

  // As in kv_ring.cuh, all four.
  __device__ __forceinline__ u32 next(int tile, int step) const {
    const RingPlace<T> place(tile, step);
    slots_.full(place.slot).wait(place.parity);
    return slots_.address(place.slot);
  }

  __device__ __forceinline__ void commit_mask() const {
    if constexpr (T::kAnyBias) ptx::cp_async_commit();
  }

  __device__ __forceinline__ void await_mask() const {
    if constexpr (T::kAnyBias) ptx::cp_async_wait<0>();
  }

  // Nothing else would make the arrival wait for the reads before it: they take another way through the multiprocessor,
  // and the copy engine has been seen to overwrite what was still to be read. So the arrival's address depends on what
  // was read last, by a number that is always 0; the reads of a warp come back in order.
  __device__ __forceinline__ void release(int tile, int step, u32 last_read) const {
    __syncwarp();
    const ptx::Mbarrier empty = slots_.empty(RingPlace<T>(tile, step).slot);
    if (ptx::elect_one()) ptx::Mbarrier{empty.address + (last_read & blockIdx.z)}.arrive();
  }

  __device__ __forceinline__ void drain() const {}  // no more is asked for than is read

 protected:
  TmaSlots<T> slots_;
};

// Fills the ring for other warps, in one thread.
template <class T>
__device__ __forceinline__ void produce(const TmaLoader<T>& loader) {
  if (loader.work.kv_tiles == 0) return;
  loader.load_q();
  u32 slot = 0;
  u32 parity = 0;
  const auto load = [&](const abi::TensorMap& map, int tile) {
#pragma unroll 1
    for (int step = 0; step < T::kSteps; ++step) {
      loader.slots.empty(slot).wait(parity ^ 1);
      loader.load_step(map, tile, step, slot);
      if (++slot == T::kStages) {
        slot = 0;
        parity ^= 1;
      }
    }
  };
#pragma unroll 1
  for (int tile = 0; tile < loader.work.kv_tiles; ++tile) {
    load(loader.p.k_map, tile);
    load(loader.p.v_map, tile);
  }
}

// The ring of a block without a producer: the first warp fills it as it reads.
template <class T>
class TmaRing : public TmaReader<T> {
 public:
  __device__ TmaRing(const abi::TmaAttentionParams& p, const typename T::Work& work, u32 smem)
      : TmaReader<T>({smem}), loader_{p, work, {smem}}, fills_(ptx::uniform(opaque(threadIdx.x) / 32) == 0) {
    slots_.init();
    if (fills_ && work.kv_tiles > 0 && ptx::elect_one()) {
      loader_.load_q();
#pragma unroll
      for (int step = 0; step < T::kStages - 1; ++step) fill(0, step);
    }
  }

  __device__ __forceinline__ u32 next(int tile, int step) const {
    // The slot that was released last has its turn again kStages - 1 steps after this one.
    if (fills_ && ptx::elect_one()) fill(tile, step + T::kStages - 1);
    return TmaReader<T>::next(tile, step);
  }

 private:
  using TmaReader<T>::slots_;

  __device__ __forceinline__ void fill(int tile, int step) const {
    tile += step / (2 * T::kSteps);
    step %= 2 * T::kSteps;
    if (tile >= loader_.work.kv_tiles) return;
    const RingPlace<T> place(tile, step);
    slots_.empty(place.slot).wait(place.parity ^ 1);
    const bool is_v = step >= T::kSteps;
    loader_.load_step(is_v ? loader_.p.v_map : loader_.p.k_map, tile, is_v ? step - T::kSteps : step, place.slot);
  }

  TmaLoader<T> loader_;
  bool fills_;
};

}  // namespace ffpa::native
