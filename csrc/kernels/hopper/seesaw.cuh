// Attention for head dims 384..768 on Hopper: a producer warp streams K and V through a ring of slots; two consumer
// warpgroups share 64 query rows, each owning half of O's columns and computing the scores of half of the keys.
// docs/kernels/hopper.md draws the schedule.
#pragma once

#include "core/kernel_entry.cuh"
#include "kernels/hopper/output.cuh"
#include "kernels/hopper/seesaw_plan.cuh"
#include "kernels/hopper/slot_ring.cuh"
#include "kernels/hopper/softmax.cuh"
#include "kernels/hopper/tile_work.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"

namespace ffpa::hopper {

// Barriers between the two consumer warpgroups; each warp arrives once a step.
struct SeesawBarriers {
  ptx::Mbarrier q_full;     // Q is in shared memory
  ptx::Mbarrier max_ready;  // both wrote their row maxima of the next step
  ptx::Mbarrier pv_done;    // both finished reading P
  ptx::Mbarrier p_ready;    // both wrote P

  __device__ __forceinline__ explicit SeesawBarriers(unsigned address)
      : q_full{address}, max_ready{address + 8}, pv_done{address + 16}, p_ready{address + 24} {}

  __device__ __forceinline__ void init(int consumer_warps) const {
    q_full.init(1);
    max_ready.init(consumer_warps);
    pv_done.init(consumer_warps);
    p_ready.init(consumer_warps);
  }
};

// The lane that keeps the ring filled, in the order in which the consumers read: K of step 0, then for each step K of
// the next step and V of this one.
template <class Plan, class Ring>
struct SeesawProducer {
  const abi::TmaAttentionParams& params;
  TileWork work;
  Ring ring;

  __device__ __forceinline__ void load_q(unsigned q, ptx::Mbarrier q_full) {
    q_full.arrive_expect(Plan::kQBytes);
    for (int column = 0; column < Plan::kQBytes / (Plan::kRows * 2); column += 64) {
      ptx::load_tile(q + column * Plan::kRows * 2, params.q_map, {column, work.query_row, work.head, work.batch},
                     q_full);
    }
  }

  __device__ __forceinline__ void load_k(int step) {
    const int first_key = work.first_key(step, Plan::kKeys);
    for (int slot = 0; slot < Plan::kKSlots; ++slot) {
      const ptx::Mbarrier full = ring.open(Plan::kKSlotBytes);
      unsigned destination = ring.slot_address();
#pragma unroll
      for (int column = 0; column < Plan::kSlotKColumns; column += 64) {
#pragma unroll
        for (int key = 0; key < Plan::kKeys; key += Plan::kBoxKvRows) {
          ptx::load_tile(destination, params.k_map,
                         {slot * Plan::kSlotKColumns + column, first_key + key, work.kv_head, work.batch}, full);
          destination += Plan::kBoxKvRows * Plan::kRowBytes;
        }
      }
      ring.advance();
    }
  }

  __device__ __forceinline__ void load_v(int step) {
    const int first_key = work.first_key(step, Plan::kKeys);
    for (int slot = 0; slot < Plan::kVSlots; ++slot) {
      const ptx::Mbarrier full = ring.open(Plan::kVSlotBytes);
#pragma unroll
      for (int group = 0; group < Plan::kOwnColumns / 32; ++group) {
        ptx::load_tile(ring.slot_address() + group * Plan::kVGroupBytes, params.v_map,
                       {group * 64, first_key + slot * Plan::kSlotVKeys, work.kv_head, work.batch}, full);
      }
      ring.advance();
    }
  }

  __device__ __forceinline__ void run(unsigned q, ptx::Mbarrier q_full) {
    if (work.steps == 0) return;
    load_q(q, q_full);
    load_k(0);
    for (int step = 1; step < work.steps; ++step) {
      load_k(step);
      load_v(step - 1);
    }
    load_v(work.steps - 1);
  }
};

// One consumer warpgroup. While QK^T of a step runs on the tensor cores, P of the step before is stored and O rescaled;
// while PV runs, the softmax of the next step is computed. Both are cut into pieces, one for each slot of the ring.
template <class Element, class Plan, class Ring>
struct SeesawConsumer {
  static constexpr int kScores = Plan::kOwnKeys / 2;     // a thread
  static constexpr int kOutputs = Plan::kOwnColumns / 2;  // a thread
  static constexpr int kHead = 1;

  const abi::AttentionParams& a;
  TileWork work;
  SeesawBarriers barriers;
  Ring ring;
  unsigned q, p;       // shared-memory addresses
  float (*stats)[2][Plan::kRows];  // [step parity][warpgroup][row]
  int warpgroup;       // 0: the first half of the keys and of O's columns
  int row;             // of the thread's first row in the tile
  ColumnLimit limit;

  float o[kOutputs];
  float s[kScores];
  unsigned packed_p[kScores / 2];
  float maximum[2] = {kMaxFloor, kMaxFloor};  // raw scores
  float sum[2] = {0.f, 0.f};                  // of this warpgroup's keys
  float rescale[2];                           // what the step multiplies O with
  float scaled_max[2];

  // ---- tensor-core work of one slot

  template <int kSlot>
  __device__ __forceinline__ void issue_qk() {
    ring.wait_full();
    ptx::wgmma_fence();
    const ptx::WgmmaDescriptor q_tile = ptx::k_major_descriptor(ptx::opaque(q) + kSlot * Plan::kSlotKColumns * Plan::kRows * 2);
    const ptx::WgmmaDescriptor k_tile =
        ptx::k_major_descriptor(ring.slot_address() + warpgroup * Plan::kOwnKeys * Plan::kRowBytes);
#pragma unroll
    for (int k = 0; k < Plan::kSlotKColumns / 16; ++k) {
      const ptx::WgmmaDescriptor qk = q_tile.advance(k / 4 * Plan::kRows * Plan::kRowBytes + k % 4 * 32);
      const ptx::WgmmaDescriptor kk = k_tile.advance(k / 4 * Plan::kKeys * Plan::kRowBytes + k % 4 * 32);
      if (kSlot == 0 && k == 0) {
        ptx::Wgmma<Plan::kOwnKeys>::template ss<Element, ptx::BMajor::k, 0>(s, qk, kk);
      } else {
        ptx::Wgmma<Plan::kOwnKeys>::template ss<Element, ptx::BMajor::k, 1>(s, qk, kk);
      }
    }
    ptx::wgmma_commit();
  }

  template <int kSlot>
  __device__ __forceinline__ void issue_pv() {
    ring.wait_full();
    ptx::wgmma_fence();
    const ptx::WgmmaDescriptor v_tile = ptx::mn_major_descriptor(
        ring.slot_address() + warpgroup * (Plan::kOwnColumns / 64) * Plan::kVGroupBytes, Plan::kVGroupBytes);
#pragma unroll
    for (int k = 0; k < Plan::kSlotVKeys / 16; ++k) {
      constexpr int kStepsPerChunk = 4;  // P lies in chunks of 64 keys
      const int k_step = kSlot * (Plan::kSlotVKeys / 16) + k;
      const ptx::WgmmaDescriptor p_tile = ptx::k_major_descriptor(ptx::opaque(p)).advance(
          k_step / kStepsPerChunk * Plan::kRows * Plan::kRowBytes + k_step % kStepsPerChunk * 32);
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
                                                                  v_tile.advance(kFrom / 64 * Plan::kVGroupBytes));
      issue_pv_columns<kFrom + kWidth>(p_tile, v_tile);
    }
  }

  // ---- pieces of softmax

  __device__ __forceinline__ void publish_max(int step) {
    const int first_column = work.first_key(step, Plan::kKeys) + warpgroup * Plan::kOwnKeys;
    if (limit.touches(first_column + Plan::kOwnKeys)) {
      limit.template apply<kScores>(s, first_column + threadIdx.x % 4 * 2);
    }
    float own[2];
    row_max<kScores>(s, own);
    if (threadIdx.x % 4 == 0) {
      stats[step & 1][warpgroup][row] = own[0];
      stats[step & 1][warpgroup][row + 8] = own[1];
    }
    barriers.max_ready.warp_arrive();
  }

  __device__ __forceinline__ void combine_max(int step) {
    barriers.max_ready.wait(step & 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float both = fmaxf(stats[step & 1][0][row + 8 * i], stats[step & 1][1][row + 8 * i]);
      const float larger = fmaxf(maximum[i], both);
      rescale[i] = exp2_approx((maximum[i] - larger) * a.scale_log2);
      maximum[i] = larger;
      scaled_max[i] = larger * a.scale_log2;
      sum[i] *= rescale[i];
    }
  }

  // Scores kFrom..kTo to weights.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void exponentiate() {
#pragma unroll
    for (int i = kFrom; i < kTo; i += 2) {
      const int half = i / 2 % 2;
      const float left = exp2_approx(fmaf(s[i], a.scale_log2, -scaled_max[half]));
      const float right = exp2_approx(fmaf(s[i + 1], a.scale_log2, -scaled_max[half]));
      sum[half] += left + right;
      packed_p[i / 2] = pack2<Element>(left, right);
    }
  }

  template <int kPiece, int kPieces>
  __device__ __forceinline__ void softmax_piece(int step) {
    if constexpr (kPiece == 0) {
      publish_max(step);
    } else {
      if constexpr (kPiece == 1) combine_max(step);
      constexpr int kParts = kPieces - 1;
      constexpr int kFrom = kScores / 4 * (kPiece - 1) / kParts * 4;
      constexpr int kTo = kScores / 4 * kPiece / kParts * 4;
      exponentiate<kFrom, kTo>();
    }
  }

  // P in shared memory: K-major chunks of 64 rows x 64 keys, swizzled as the copy engine does.
  __device__ __forceinline__ void store_p() {
    const int first_key = warpgroup * Plan::kOwnKeys;
    const unsigned base = p + first_key / 64 * Plan::kRows * Plan::kRowBytes + threadIdx.x % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned line = base + (row + 8 * half) * Plan::kRowBytes;
#pragma unroll
      for (int block = 0; block < Plan::kOwnKeys / 8; ++block) {
        const unsigned column = (first_key % 64 / 8 + block) ^ (row % 8);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(line + column * 16), "r"(packed_p[block * 2 + half]) : "memory");
      }
    }
    ptx::fence_async_shared();
    barriers.p_ready.warp_arrive();
  }

  template <int kFrom, int kTo>
  __device__ __forceinline__ void rescale_output() {
#pragma unroll
    for (int i = kFrom; i < kTo; ++i) o[i] *= rescale[i / 2 % 2];
  }

  // ---- phases

  // Runs slots kSlot..kEnd of QK^T of `step`; meanwhile the end of PV of step - 2, P and the rescaling of O for step - 1.
  template <int kSlot, int kEnd>
  __device__ __forceinline__ void qk_phase(int step) {
    if constexpr (kSlot < kEnd) {
      issue_qk<kSlot>();
      ptx::wgmma_wait<1>();
      if constexpr (kSlot == 0) {
        ptx::pin_accumulators<kOutputs>(o);
        if (step > 1) ring.release_previous();
        barriers.pv_done.warp_arrive();
      } else {
        ring.release_previous();
        if constexpr (kSlot == 1) {
          barriers.pv_done.wait((step - 1) & 1);
          store_p();
        }
        constexpr int kParts = Plan::kKSlots - 1;
        rescale_output<kOutputs / 4 * (kSlot - 1) / kParts * 4, kOutputs / 4 * kSlot / kParts * 4>();
      }
      ring.advance();
      qk_phase<kSlot + 1, kEnd>(step);
    }
  }

  // Runs PV of step - 1; meanwhile the softmax of `step`.
  template <int kSlot, bool kSoftmax>
  __device__ __forceinline__ void pv_phase(int step) {
    if constexpr (kSlot < Plan::kVSlots) {
      if constexpr (kSlot == 0) ptx::pin_accumulators<kOutputs>(o);
      issue_pv<kSlot>();
      if constexpr (kSoftmax || kSlot > 0) {
        ptx::wgmma_wait<1>();
        ring.release_previous();
      }
      if constexpr (kSoftmax && kSlot == 0) ptx::pin_accumulators<kScores>(s);
      if constexpr (kSoftmax) softmax_piece<kSlot, Plan::kVSlots>(step);
      ring.advance();
      pv_phase<kSlot + 1, kSoftmax>(step);
    }
  }

  template <int kSlot>
  __device__ __forceinline__ void first_qk_phase() {
    if constexpr (kSlot < Plan::kKSlots) {
      issue_qk<kSlot>();
      if constexpr (kSlot > 0) {
        ptx::wgmma_wait<1>();
        ring.release_previous();
      }
      ring.advance();
      first_qk_phase<kSlot + 1>();
    }
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
    if (work.steps > 0) {
      barriers.q_full.wait(0);
      first_qk_phase<0>();
      ptx::wgmma_wait<0>();
      ptx::pin_accumulators<kScores>(s);
      ring.release_previous();
      publish_max(0);
      combine_max(0);
      exponentiate<0, kScores>();
      if (work.steps > 1) {
        qk_phase<0, kHead>(1);
        for (int step = 1; step < work.steps - 1; ++step) {
          qk_phase<kHead, Plan::kKSlots>(step);
          barriers.p_ready.wait((step - 1) & 1);
          pv_phase<0, true>(step);
          qk_phase<0, kHead>(step + 1);
        }
        qk_phase<kHead, Plan::kKSlots>(work.steps - 1);
        barriers.p_ready.wait((work.steps - 2) & 1);
        pv_phase<0, true>(work.steps - 1);
      }
      ptx::wgmma_wait<0>();
      ptx::pin_accumulators<kOutputs>(o);
      barriers.pv_done.warp_arrive();
      barriers.pv_done.wait((work.steps - 1) & 1);
      store_p();
      rescale_output<0, kOutputs>();
      barriers.p_ready.wait((work.steps - 1) & 1);
      pv_phase<0, false>(work.steps);
      ptx::wgmma_wait<0>();
      ptx::pin_accumulators<kOutputs>(o);
    }
    store_output();
  }

  // Adds up both warpgroups' row sums, then writes this one's columns of O; the first also writes the LSE.
  __device__ __forceinline__ void store_output() {
    const int buffer = work.steps & 1;  // the one that the last step did not use
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = quad_sum(sum[i]);
      if (threadIdx.x % 4 == 0) stats[buffer][warpgroup][row + 8 * i] = sum[i];
    }
    ptx::named_barrier_sync(kConsumersBarrier, 256);
    Element* head_output = static_cast<Element*>(a.o) + work.batch * a.o_stride.batch + work.head * a.o_stride.head;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = work.query_row + row + 8 * i;
      const float total = stats[buffer][0][row + 8 * i] + stats[buffer][1][row + 8 * i];
      const bool exists = query < a.q_len;
      store_row_fragment<Element, kOutputs>(o, i, inverse_or_zero(total), head_output + query * a.o_stride.row,
                                            warpgroup * Plan::kOwnColumns, a.head_dim, exists);
      if (a.lse != nullptr && exists && warpgroup == 0 && threadIdx.x % 4 == 0) {
        const long long head_index = static_cast<long long>(work.batch) * a.heads + work.head;
        a.lse[head_index * a.q_len + query] = log_sum_exp(maximum[i], total, a.scale);
      }
    }
  }

  static constexpr int kConsumersBarrier = 1;
};

template <class Variant>
struct Seesaw {
  using Params = abi::TmaAttentionParams;
  using Element = typename Variant::Element;
  using Plan = SeesawPlan<Variant::kHeadDim>;
  using Ring = SlotRing<Plan::kSlots, Plan::kSlotBytes>;

  static constexpr int kThreads = 384;  // producer warpgroup, two consumer warpgroups
  static constexpr int kMinBlocks = 1;
  static constexpr int kSmemBytes = Plan::kSmemBytes;
  static constexpr int kTileM = Plan::kRows;
  static constexpr int kTileN = Plan::kKeys;
  static constexpr int kCluster = 1;
  static constexpr int kBoxCols = 64;
  static constexpr int kBoxQRows = Plan::kRows;
  static constexpr int kBoxKvRows = Plan::kBoxKvRows;
  static constexpr int kSwizzle = 128;
  static constexpr int kPersistent = 0;

  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  static __device__ __forceinline__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = ptx::shared_address(shared);
    const SeesawBarriers barriers(base + Plan::kBarrierOffset);
    const Ring ring(base + Plan::kRingOffset, base + Plan::kBarrierOffset + Plan::kFixedBarriers * 8);
    const TileWork work = TileWork::of_block(params.a, Plan::kRows, Plan::kKeys);
    const int warp = ptx::uniform(threadIdx.x / 32);

    if (threadIdx.x == 0) {
      barriers.init(8);
      ring.init(8);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();

    if (warp < 4) {
      ptx::release_registers<kProducerRegisters>();
      if (threadIdx.x == 0) {
        SeesawProducer<Plan, Ring> producer{params, work, ring};
        producer.run(base, barriers.q_full);
      }
    } else {
      ptx::claim_registers<kConsumerRegisters>();
      const int row = warp % 4 * 16 + threadIdx.x % 32 / 4;
      SeesawConsumer<Element, Plan, Ring> consumer{
          params.a,
          work,
          barriers,
          ring,
          base,
          base + Plan::kPOffset,
          reinterpret_cast<float(*)[2][Plan::kRows]>(shared + Plan::kStatOffset),
          warp / 4 - 1,
          row,
          ColumnLimit(work.query_row, work.query_row + row, params.a.kv_len, params.a.causal,
                      params.a.causal_offset)};
      consumer.run();
    }
  }
};

}  // namespace ffpa::hopper
