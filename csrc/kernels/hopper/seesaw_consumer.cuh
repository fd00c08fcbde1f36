// A consumer warpgroup of the seesaw kernel: its products, and the softmax between them.
#pragma once

#include "kernels/hopper/mask_fragment.cuh"
#include "kernels/hopper/output.cuh"
#include "kernels/hopper/seesaw_barriers.cuh"
#include "kernels/hopper/slot_ring.cuh"
#include "kernels/hopper/softmax.cuh"
#include "kernels/hopper/tile_work.cuh"
#include "ptx/cluster.cuh"
#include "ptx/memory.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"

namespace ffpa::hopper {

// One consumer warpgroup. While QK^T of a step runs on the tensor cores, P of the step before is stored and O rescaled;
// while PV runs, the softmax of the next step is computed. Both are cut into pieces, one for each slot of the ring.
template <class Element, class Plan, class Ring, bool kMasked>
struct SeesawConsumer {
  using Units = ScoreUnits<kMasked>;
  static constexpr int kScores = Plan::kOwnKeys / 2;      // a thread
  static constexpr int kOutputs = Plan::kOwnColumns / 2;  // a thread

  const abi::AttentionParams& a;
  TileWork work;
  SeesawBarriers barriers;
  Ring ring;
  ptx::WgmmaDescriptor q_descriptor;
  ptx::WgmmaDescriptor p_descriptor;
  ptx::WgmmaDescriptor k_descriptor;          // of this warpgroup's keys in slot 0
  ptx::WgmmaDescriptor v_descriptor;          // of this warpgroup's columns in slot 0
  u32 p;                                      // shared-memory address
  float (*stats)[Plan::kParts][Plan::kRows];  // [step parity][part][row]
  int part;                                   // which part of the step's keys and of O's columns is the warpgroup's
  int peer;                                   // the other block of a pair
  int row;                                    // of the thread's first row in the tile
  ColumnLimit limit;

  float o[kOutputs];
  float s[kScores];
  u32 packed_p[kScores / 2];
  MaskFragment<Element, kScores, Plan::kKeys> mask;
  float maximum[2] = {Units::kMaxFloor, Units::kMaxFloor};  // in Units
  float sum[2] = {0.f, 0.f};                                // of this warpgroup's keys
  float rescale[2];                                         // what the step multiplies O with
  float scaled_max[2];

  // ---- tensor-core work of one slot. kPlace: how many slots of the ring were read before it, counted from the start
  // of the tile and leaving out whole steps, of which `step` (at least 1) says the number.

  static constexpr int kFirst = 0;               // QK of step 0
  static constexpr int kQk = Plan::kKSlots;      // QK of a step
  static constexpr int kPv = 2 * Plan::kKSlots;  // PV of the step before
  static constexpr int kLast = Plan::kKSlots;    // PV of the last step

  template <int kPlace>
  static constexpr int kSlotAt = kPlace % Plan::kSlots;

  template <int kPlace>
  __device__ __forceinline__ void wait_full(int step) const {
    const u32 round = kPlace / Plan::kSlots + Plan::kStepRounds * (step - 1);
    ring.full(kSlotAt<kPlace>).wait(round & 1);
  }

  // Gives back the slot read before kPlace.
  template <int kPlace>
  __device__ __forceinline__ void release_before() const {
    ring.empty(kSlotAt<kPlace + Plan::kSlots - 1>).warp_arrive();
  }

  template <int kSlot, int kPlace>
  __device__ __forceinline__ void issue_qk(int step) {
    wait_full<kPlace>(step);
    ptx::wgmma_fence();
    ptx::forget(q_descriptor.low);
    ptx::forget(k_descriptor.low);
    const ptx::WgmmaDescriptor q_tile = q_descriptor.advance(kSlot * Plan::kSlotKColumns * Plan::kRows * 2);
    const ptx::WgmmaDescriptor k_tile = k_descriptor.advance(kSlotAt<kPlace> * Plan::kSlotBytes);
#pragma unroll
    for (int k = 0; k < Plan::kSlotKColumns / 16; ++k) {
      const ptx::WgmmaDescriptor qk = q_tile.advance(k / 4 * Plan::kRows * Plan::kRowBytes + k % 4 * 32);
      const ptx::WgmmaDescriptor kk = k_tile.advance(k / 4 * Plan::kBlockKeys * Plan::kRowBytes + k % 4 * 32);
      if (kSlot == 0 && k == 0) {
        ptx::Wgmma<Plan::kOwnKeys>::template ss<Element, ptx::BMajor::k, 0>(s, qk, kk);
      } else {
        ptx::Wgmma<Plan::kOwnKeys>::template ss<Element, ptx::BMajor::k, 1>(s, qk, kk);
      }
    }
    ptx::wgmma_commit();
  }

  template <int kSlot, int kPlace>
  __device__ __forceinline__ void issue_pv(int step) {
    wait_full<kPlace>(step);
    ptx::wgmma_fence();
    ptx::forget(p_descriptor.low);
    ptx::forget(v_descriptor.low);
    const ptx::WgmmaDescriptor v_tile = v_descriptor.advance(kSlotAt<kPlace> * Plan::kSlotBytes);
#pragma unroll
    for (int k = 0; k < Plan::kSlotVKeys / 16; ++k) {
      constexpr int kStepsPerChunk = 4;  // P lies in chunks of 64 keys
      const int k_step = kSlot * (Plan::kSlotVKeys / 16) + k;
      const ptx::WgmmaDescriptor p_tile =
          p_descriptor.advance(k_step / kStepsPerChunk * Plan::kRows * Plan::kRowBytes + k_step % kStepsPerChunk * 32);
      issue_pv_columns<0>(p_tile, v_tile.advance(k * 16 * Plan::kRowBytes));
    }
    ptx::wgmma_commit();
  }

  // Splits the warpgroup's columns into instructions of at most 256, at multiples of 64.
  template <int kFrom>
  __device__ __forceinline__ void issue_pv_columns(ptx::WgmmaDescriptor p_tile, ptx::WgmmaDescriptor v_tile) {
    constexpr int kLeft = Plan::kOwnColumns - kFrom;
    if constexpr (kLeft > 0) {
      constexpr int kWidth = kLeft <= 256 ? kLeft : 192;
      ptx::Wgmma<kWidth>::template ss<Element, ptx::BMajor::n, 1>(o + kFrom / 2, p_tile,
                                                                  v_tile.advance(kFrom / 64 * Plan::kBoxBytes));
      issue_pv_columns<kFrom + kWidth>(p_tile, v_tile);
    }
  }

  // ---- pieces of softmax

  // Writes one value for each of the thread's rows where every warpgroup of the tile can read it.
  __device__ __forceinline__ void publish(int buffer, const float (&values)[2]) {
    if constexpr (Plan::kBlocks > 1) {
      if (threadIdx.x == kFirstConsumer) barriers.peer_max.arrive_expect(2 * Plan::kRows * 4);
    }
    if (threadIdx.x % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* place = &stats[buffer][part][row + 8 * i];
        *place = values[i];
        if constexpr (Plan::kBlocks > 1) {
          ptx::store_peer(ptx::peer_address(ptx::shared_address(place), peer), values[i],
                          ptx::peer_address(barriers.peer_max.address, peer));
        }
      }
    }
    barriers.max_ready.arrive();
  }

  __device__ __forceinline__ void wait_published(int phase) const {
    barriers.max_ready.wait(phase & 1);
    if constexpr (Plan::kBlocks > 1) barriers.peer_max.wait(phase & 1);
  }

  __device__ __forceinline__ int first_column(int step) const {
    return work.first_key(step, Plan::kKeys) + part * Plan::kOwnKeys;
  }

  // Step 0 has the last keys.
  template <bool kStep0>
  __device__ __forceinline__ void load_mask(int step) {
    if constexpr (kMasked) mask.template load<kStep0>(a, work, row, first_column(step));
  }

  __device__ __forceinline__ void publish_max(int step) {
    const int first_column = this->first_column(step);
    if constexpr (kMasked) {
      mask.apply(a, s);
    } else {
      apply_sign<kScores>(s, a.scale_log2);
    }
    if (limit.touches(first_column + Plan::kOwnKeys)) {
      limit.template apply<kScores>(s, first_column + threadIdx.x % 4 * 2);
    }
    float own[2];
    row_max<kScores>(s, own);
    publish(step & 1, own);
  }

  __device__ __forceinline__ void combine_max(int step) {
    wait_published(step);
    const float factor = Units::factor(a);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float larger = maximum[i];
#pragma unroll
      for (int other = 0; other < Plan::kParts; ++other) {
        larger = fmaxf(larger, stats[step & 1][other][row + 8 * i]);
      }
      rescale[i] = ptx::ex2((maximum[i] - larger) * factor);
      maximum[i] = larger;
      scaled_max[i] = larger * factor;
      sum[i] *= rescale[i];
    }
    if constexpr (kMasked) subtract_huge<kScores>(s, maximum, scaled_max);
  }

  // Scores kFrom..kTo to weights.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void exponentiate() {
    const float factor = Units::factor(a);
#pragma unroll
    for (int i = kFrom; i < kTo; i += 2) {
      const int half = i / 2 % 2;
      const float left = ptx::ex2(fmaf(s[i], factor, -scaled_max[half]));
      const float right = ptx::ex2(fmaf(s[i + 1], factor, -scaled_max[half]));
      sum[half] += left + right;
      packed_p[i / 2] = ptx::pack2<Element>(left, right);
    }
  }

  template <int kPiece, int kPieces>
  __device__ __forceinline__ void softmax_piece(int step) {
    constexpr int kCombine = Plan::kBlocks > 1 ? kPieces / 2 : 1;  // a pair's maxima take longer
    if constexpr (kPiece == 0) publish_max(step);
    if constexpr (kPiece >= kCombine) {
      if constexpr (kPiece == kCombine) combine_max(step);
      constexpr int kParts = kPieces - kCombine;
      exponentiate<kScores / 4 * (kPiece - kCombine) / kParts * 4,
                   kScores / 4 * (kPiece - kCombine + 1) / kParts * 4>();
    }
  }

  // P in shared memory: K-major chunks of 64 rows x 64 keys, swizzled as the copy engine does.
  __device__ __forceinline__ void store_p() {
    const int first_key = part * Plan::kOwnKeys;
    const u32 base = p + first_key / 64 * Plan::kRows * Plan::kRowBytes + threadIdx.x % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 line = base + (row + 8 * half) * Plan::kRowBytes;
#pragma unroll
      for (int block = 0; block < Plan::kOwnKeys / 8; ++block) {
        const u32 column = (first_key % 64 / 8 + block) ^ (row % 8);
        ptx::store_shared(line + column * 16, packed_p[block * 2 + half]);
      }
    }
    ptx::fence_async_shared();
    barriers.p_ready.arrive();
  }

  template <int kFrom, int kTo>
  __device__ __forceinline__ void rescale_output() {
#pragma unroll
    for (int i = kFrom; i < kTo; ++i) o[i] *= rescale[i / 2 % 2];
  }

  __device__ __forceinline__ void report_pv_done() const {
    barriers.pv_done.warp_arrive();
    if constexpr (Plan::kBlocks > 1) ptx::warp_arrive_peer(ptx::peer_address(barriers.peer_done.address, peer));
  }

  // Until P of `step` may be written. A pair waits for the peer as well, which has then read the P of the step before
  // that came from here: the copy that carried it is over, and the next one finds the peer's place free.
  __device__ __forceinline__ void wait_pv_done(int step) const {
    barriers.pv_done.wait(step & 1);
    if constexpr (Plan::kBlocks > 1) barriers.peer_done.wait(step & 1);
  }

  __device__ __forceinline__ void wait_p(int step) const {
    barriers.p_ready.wait(step & 1);
    if constexpr (Plan::kBlocks > 1) barriers.peer_p.wait(step & 1);
  }

  // ---- phases

  // QK^T of step 0; nothing else to do meanwhile.
  template <int kSlot>
  __device__ __forceinline__ void first_qk_phase() {
    if constexpr (kSlot < Plan::kKSlots) {
      issue_qk<kSlot, kFirst + kSlot>(1);
      if constexpr (kSlot > 0) {
        ptx::wgmma_wait<1>();
        release_before<kFirst + kSlot>();
      }
      first_qk_phase<kSlot + 1>();
    }
  }

  // Slots kSlot.. below kEnd of QK^T of `step`. Meanwhile PV of step - 2 ends, and P is stored and O rescaled for PV of
  // step - 1.
  template <int kSlot, int kEnd>
  __device__ __forceinline__ void qk_phase(int step) {
    if constexpr (kSlot < kEnd) {
      issue_qk<kSlot, kQk + kSlot>(step);
      ptx::wgmma_wait<1>();
      if constexpr (kSlot == 0) {
        ptx::pin_accumulators<kOutputs>(o);
        if (step > 1) release_before<kQk>();
        report_pv_done();
      } else {
        release_before<kQk + kSlot>();
        if constexpr (kSlot == Plan::kStorePSlot) {
          wait_pv_done(step - 1);
          store_p();
        }
        if constexpr (kSlot == Plan::kStorePSlot + 1) load_mask<false>(step);
        constexpr int kParts = Plan::kKSlots - 1;
        rescale_output<kOutputs / 4 * (kSlot - 1) / kParts * 4, kOutputs / 4 * kSlot / kParts * 4>();
      }
      qk_phase<kSlot + 1, kEnd>(step);
    }
  }

  // PV of step - 1. Meanwhile QK^T of `step` ends, and its softmax is computed.
  template <int kSlot>
  __device__ __forceinline__ void pv_phase(int step) {
    if constexpr (kSlot < Plan::kVSlots) {
      if constexpr (kSlot == 0) {
        wait_p(step - 1);
        ptx::pin_accumulators<kOutputs>(o);
      }
      issue_pv<kSlot, kPv + kSlot>(step);
      if constexpr (kSlot == 0) {
        ptx::wgmma_wait<1>();
        release_before<kPv + kSlot>();
        ptx::pin_accumulators<kScores>(s);
        softmax_piece<kSlot, Plan::kVSlots>(step);
      } else {
        softmax_piece<kSlot, Plan::kVSlots>(step);
        ptx::wgmma_wait<1>();
        release_before<kPv + kSlot>();
      }
      pv_phase<kSlot + 1>(step);
    }
  }

  // PV of the last step, `steps` - 1.
  template <int kSlot>
  __device__ __forceinline__ void last_pv_phase(int steps) {
    if constexpr (kSlot < Plan::kVSlots) {
      issue_pv<kSlot, kLast + kSlot>(steps);
      if constexpr (kSlot > 0) {
        ptx::wgmma_wait<1>();
        release_before<kLast + kSlot>();
      }
      last_pv_phase<kSlot + 1>(steps);
    }
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
    if (work.steps > 0) {
      load_mask<true>(0);
      barriers.q_full.wait(0);
      first_qk_phase<0>();
      ptx::wgmma_wait<0>();
      ptx::pin_accumulators<kScores>(s);
      release_before<kQk>();
      publish_max(0);
      combine_max(0);
      exponentiate<0, kScores>();
      // The loop turns over behind the first slot of QK^T: there O is out of flight, as the compiler requires.
      if (work.steps > 1) {
        qk_phase<0, 1>(1);
        for (int step = 1; step < work.steps - 1; ++step) {
          qk_phase<1, Plan::kKSlots>(step);
          pv_phase<0>(step);
          qk_phase<0, 1>(step + 1);
        }
        qk_phase<1, Plan::kKSlots>(work.steps - 1);
        pv_phase<0>(work.steps - 1);
      }
      ptx::wgmma_wait<0>();
      ptx::pin_accumulators<kOutputs>(o);
      if (work.steps > 1) release_before<kLast>();
      report_pv_done();
      wait_pv_done(work.steps - 1);
      store_p();
      rescale_output<0, kOutputs>();
      wait_p(work.steps - 1);
      ptx::pin_accumulators<kOutputs>(o);
      last_pv_phase<0>(work.steps);
      ptx::wgmma_wait<0>();
      ptx::pin_accumulators<kOutputs>(o);
    }
    store_output();
  }

  // Adds up the warpgroups' row sums, then writes this one's columns of O; the first also writes the LSE.
  __device__ __forceinline__ void store_output() {
    const int buffer = work.steps & 1;  // the one that the last step did not use
    const float own[2] = {quad_sum(sum[0]), quad_sum(sum[1])};
    publish(buffer, own);
    wait_published(work.steps);
    Element* head_output = static_cast<Element*>(a.o) + work.batch * a.o_stride.batch + work.head * a.o_stride.head;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = work.query_row + row + 8 * i;
      float total = 0.f;
#pragma unroll
      for (int other = 0; other < Plan::kParts; ++other) total += stats[buffer][other][row + 8 * i];
      const bool exists = query < a.q_len;
      store_row_fragment<Element, kOutputs>(o, i, inverse_or_zero(total), head_output + query * a.o_stride.row,
                                            part * Plan::kOwnColumns, a.head_dim, exists);
      if (a.lse != nullptr && exists && part == 0 && threadIdx.x % 4 == 0) {
        const long long head_index = static_cast<long long>(work.batch) * a.heads + work.head;
        a.lse[head_index * a.q_len + query] = log_sum_exp(maximum[i], total, Units::natural(a));
      }
    }
    // Shared memory must outlive what the peer still sends.
    if constexpr (Plan::kBlocks > 1) ptx::cluster_sync();
  }

  static constexpr int kFirstConsumer = 128;  // thread
};

}  // namespace ffpa::hopper
