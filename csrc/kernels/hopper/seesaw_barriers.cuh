// Barriers of the seesaw kernel besides the ring's.
#pragma once

#include "ptx/mbarrier.cuh"

namespace ffpa::hopper {

// Those of the middle group complete once a step, with one arrival of each consumer warp, or of each thread where it
// hands over what threads wrote or read themselves: one arrival after a __syncwarp would order as much, but
// compute-sanitizer's racecheck does not see that and would report every use.
struct SeesawBarriers {
  ptx::Mbarrier q_full;  // Q is in shared memory

  ptx::Mbarrier max_ready;  // the row maxima of the next step are written; by each thread
  ptx::Mbarrier pv_done;    // P has been read, by the tensor cores
  ptx::Mbarrier p_ready;    // P is written, and the row maxima are read; by each thread

  // The same between the blocks of a pair.
  ptx::Mbarrier peer_max;   // the peer's row maxima have come
  ptx::Mbarrier peer_done;  // the peer has read its P: what came from this block, and where the next goes
  ptx::Mbarrier peer_p;     // the peer's P has come

  __device__ __forceinline__ explicit SeesawBarriers(u32 address)
      : q_full{address},
        max_ready{address + 8},
        pv_done{address + 16},
        p_ready{address + 24},
        peer_max{address + 32},
        peer_done{address + 40},
        peer_p{address + 48} {}

  __device__ __forceinline__ void init(int consumer_warps) const {
    q_full.init(1);
    max_ready.init(32 * consumer_warps);
    pv_done.init(consumer_warps);
    p_ready.init(32 * consumer_warps);
    peer_max.init(1);
    peer_done.init(consumer_warps);
    peer_p.init(1);
  }
};

}  // namespace ffpa::hopper
