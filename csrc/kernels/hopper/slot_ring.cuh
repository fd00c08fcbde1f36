// The ring of shared-memory slots through which K and V stream. A producer lane fills slots in the order in which the
// consumer warps read them; `full` counts the bytes of a slot, `empty` one arrival of each consumer warp.
#pragma once

#include "ptx/mbarrier.cuh"

namespace ffpa::hopper {

template <int kSlots, int kSlotBytes>
struct SlotRing {
  u32 data;      // shared-memory address of slot 0
  u32 barriers;  // of full[kSlots], empty[kSlots]

  __device__ __forceinline__ ptx::Mbarrier full(int slot) const { return {barriers + 8 * slot}; }
  __device__ __forceinline__ ptx::Mbarrier empty(int slot) const { return {barriers + 8 * (kSlots + slot)}; }
  __device__ __forceinline__ u32 address(int slot) const { return data + slot * kSlotBytes; }

  // By one thread, before a block barrier: how many arrivals each `empty` and each `full` counts.
  __device__ __forceinline__ void init(int readers, int fillers = 1) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      full(slot).init(fillers);
      empty(slot).init(readers);
    }
  }
};

// The producer's place in the ring.
template <int kSlots, int kSlotBytes>
struct RingWriter {
  SlotRing<kSlots, kSlotBytes> ring;
  int slot = 0;
  u32 parity = 0;

  __device__ __forceinline__ explicit RingWriter(SlotRing<kSlots, kSlotBytes> ring) : ring(ring) {}

  // Waits until the slot has been read by all.
  __device__ __forceinline__ void wait_free() const { ring.empty(slot).wait(parity ^ 1); }

  // The same, and opens it for `bytes` of loads.
  __device__ __forceinline__ void open(u32 bytes) const {
    wait_free();
    ring.full(slot).arrive_expect(bytes);
  }

  __device__ __forceinline__ u32 address() const { return ring.address(slot); }
  __device__ __forceinline__ ptx::Mbarrier full() const { return ring.full(slot); }

  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// A consumer's place in the ring, for kernels that do not know it when they are compiled.
template <int kSlots, int kSlotBytes>
struct RingReader {
  SlotRing<kSlots, kSlotBytes> ring;
  int slot = 0;
  u32 parity = 0;

  __device__ __forceinline__ explicit RingReader(SlotRing<kSlots, kSlotBytes> ring) : ring(ring) {}

  // Waits until the next slot is loaded and returns its index.
  __device__ __forceinline__ int next() {
    ring.full(slot).wait(parity);
    const int ready = slot;
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
    return ready;
  }

  // By each consumer warp, once it has read the slot.
  __device__ __forceinline__ void release(int index) const { ring.empty(index).warp_arrive(); }
};

}  // namespace ffpa::hopper
