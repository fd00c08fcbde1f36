// The ring of shared-memory slots through which K and V stream. A producer lane fills slots in the order in which the
// consumer warps read them; `full` counts the bytes of a slot, `empty` one arrival of each consumer warp.
#pragma once

#include "ptx/mbarrier.cuh"

namespace ffpa::hopper {

template <int kSlots, int kSlotBytes>
struct SlotRing {
  static constexpr int kBarrierBytes = 2 * kSlots * 8;

  unsigned data;      // shared-memory address of slot 0
  unsigned barriers;  // full[kSlots], empty[kSlots]
  int slot = 0;
  unsigned parity = 0;

  __device__ __forceinline__ SlotRing(unsigned data_address, unsigned barrier_address)
      : data(data_address), barriers(barrier_address) {}

  __device__ __forceinline__ ptx::Mbarrier full(int index) const { return {barriers + 8 * index}; }
  __device__ __forceinline__ ptx::Mbarrier empty(int index) const { return {barriers + 8 * (kSlots + index)}; }
  __device__ __forceinline__ unsigned slot_address() const { return data + slot * kSlotBytes; }

  // By one thread, before a block barrier.
  __device__ __forceinline__ void init(int consumer_warps) const {
    for (int i = 0; i < kSlots; ++i) {
      full(i).init(1);
      empty(i).init(consumer_warps);
    }
  }

  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }

  // Producer: waits until the slot has been read, and opens it for `bytes` of loads.
  __device__ __forceinline__ ptx::Mbarrier open(unsigned bytes) const {
    empty(slot).wait(parity ^ 1);
    full(slot).arrive_expect(bytes);
    return full(slot);
  }

  // Consumer: waits until the slot is loaded.
  __device__ __forceinline__ void wait_full() const { full(slot).wait(parity); }

  // Consumer warp: gives back the slot read before the current one.
  __device__ __forceinline__ void release_previous() const {
    empty(slot == 0 ? kSlots - 1 : slot - 1).warp_arrive();
  }
};

}  // namespace ffpa::hopper
