// Between the blocks of a cluster: addresses of a peer's shared memory, and stores, copies and arrivals there. All of
// them complete on a barrier of the peer, without fences at cluster or GPU scope.
#pragma once

#include "ptx/mbarrier.cuh"

namespace ffpa::ptx {

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The address, in the cluster's window, of what lies at `address` in block `rank`.
__device__ __forceinline__ u32 peer_address(u32 address, u32 rank) {
  u32 peer;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}

// Every thread of the cluster that has not left waits here. Nothing is ordered by it but what `cluster_sync` callers
// did to barriers before.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

// Stores a word in a peer; `peer_full` counts its 4 bytes.
__device__ __forceinline__ void store_peer(u32 peer, float value, u32 peer_full) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 "
      "[%0], %1, [%2];" ::"r"(peer),
      "r"(__float_as_uint(value)), "r"(peer_full)
      : "memory");
}

// Copies from this block's shared memory to a peer's; `peer_full` counts the bytes.
__device__ __forceinline__ void copy_to_peer(u32 peer, u32 source, u32 bytes, u32 peer_full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_"
      "tx::bytes [%0], [%1], %2, [%3];" ::"r"(peer),
      "r"(source), "r"(bytes), "r"(peer_full)
      : "memory");
}

// One arrival for the whole warp on a peer's barrier. Relaxed: it says that reads are over, and publishes nothing.
__device__ __forceinline__ void warp_arrive_peer(u32 peer_barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_barrier) : "memory");
  }
}

}  // namespace ffpa::ptx
