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
template <class Plan>
struct SeesawProducer {
  const abi::TmaAttentionParams& params;
  TileWork work;
  RingWriter<Plan::kSlots, Plan::kSlotBytes> writer;

  __device__ __forceinline__ void load_q(unsigned q, ptx::Mbarrier q_full) const {
    q_full.arrive_expect(Plan::kQBytes);
#pragma unroll 1
    for (int group = 0; group < Plan::kColumnGroups; ++group) {
      ptx::load_tile(q + group * Plan::kRows * Plan::kRowBytes, params.q_map,
                     {group * 64, work.query_row, work.head, work.batch}, q_full);
    }
  }

  // All keys of a step x 64 columns at a time.
  __device__ __forceinline__ void load_k(int step) {
    const int first_key = work.first_key(step, Plan::kKeys);
#pragma unroll 1
    for (int column = 0; column < Plan::kColumnGroups * 64; column += Plan::kSlotKColumns) {
      writer.open(Plan::kKSlotBytes);
      constexpr int kBoxesDown = Plan::kKeys / Plan::kBoxKvRows;
#pragma unroll
      for (int box = 0; box < kBoxesDown * Plan::kSlotKColumns / 64; ++box) {
        ptx::load_tile(writer.address() + box * Plan::kBoxBytes, params.k_map,
                       {column + box / kBoxesDown * 64, first_key + box % kBoxesDown * Plan::kBoxKvRows, work.kv_head,
                        work.batch},
                       writer.full());
      }
      writer.advance();
    }
  }

  // All columns x the keys of one box at a time.
  __device__ __forceinline__ void load_v(int step) {
    int key = work.first_key(step, Plan::kKeys);
#pragma unroll 1
    for (int slot = 0; slot < Plan::kVSlots; ++slot) {
      writer.open(Plan::kVSlotBytes);
#pragma unroll
      for (int group = 0; group < Plan::kColumnGroups; ++group) {
        ptx::load_tile(writer.address() + group * Plan::kBoxBytes, params.v_map,
                       {group * 64, key, work.kv_head, work.batch}, writer.full());
      }
      key += Plan::kSlotVKeys;
      writer.advance();
    }
  }

  __device__ __forceinline__ void run(unsigned q, ptx::Mbarrier q_full) {
    if (work.steps == 0) return;
    load_q(q, q_full);
    // Step `steps` of K and step -1 of V do not exist.
#pragma unroll 1
    for (int step = 0; step <= work.steps; ++step) {
      if (step < work.steps) load_k(step);
      if (step > 0) load_v(step - 1);
    }
  }
};

// One consumer warpgroup. While QK^T of a step runs on the tensor cores, P of the step before is stored and O rescaled;
// while PV runs, the softmax of the next step is computed. Both are cut into pieces, one for each slot of the ring.
template <class Element, class Plan, class Ring>
struct SeesawConsumer {
  static constexpr int kScores = Plan::kOwnKeys / 2;     // a thread
  static constexpr int kOutputs = Plan::kOwnColumns / 2;  // a thread

  const abi::AttentionParams& a;
  TileWork work;
  SeesawBarriers barriers;
  Ring ring;
  ptx::WgmmaDescriptor q_descriptor;
  ptx::WgmmaDescriptor p_descriptor;
  ptx::WgmmaDescriptor k_descriptor;  // of this warpgroup's keys in slot 0
  ptx::WgmmaDescriptor v_descriptor;  // of this warpgroup's columns in slot 0
  unsigned p;                         // shared-memory address
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

  // ---- tensor-core work of one slot. kPlace: how many slots of the ring were read before it, counted from the start of
  // the tile and leaving out whole steps, of which `step` (at least 1) says the number.

  static constexpr int kFirst = 0;                         // QK of step 0
  static constexpr int kQk = Plan::kKSlots;                // QK of a step
  static constexpr int kPv = 2 * Plan::kKSlots;            // PV of the step before
  static constexpr int kLast = Plan::kKSlots;              // PV of the last step

  template <int kPlace>
  static constexpr int kSlotAt = kPlace % Plan::kSlots;

  template <int kPlace>
  __device__ __forceinline__ void wait_full(int step) const {
    const unsigned round = kPlace / Plan::kSlots + Plan::kStepRounds * (step - 1);
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
      const ptx::WgmmaDescriptor kk = k_tile.advance(k / 4 * Plan::kKeys * Plan::kRowBytes + k % 4 * 32);
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
      const ptx::WgmmaDescriptor p_tile = p_descriptor.advance(
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
                                                                  v_tile.advance(kFrom / 64 * Plan::kBoxBytes));
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
        barriers.pv_done.warp_arrive();
      } else {
        release_before<kQk + kSlot>();
        if constexpr (kSlot == 1) {
          barriers.pv_done.wait((step - 1) & 1);
          store_p();
        }
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
        barriers.p_ready.wait((step - 1) & 1);
        ptx::pin_accumulators<kOutputs>(o);
      }
      issue_pv<kSlot, kPv + kSlot>(step);
      ptx::wgmma_wait<1>();
      release_before<kPv + kSlot>();
      if constexpr (kSlot == 0) ptx::pin_accumulators<kScores>(s);
      softmax_piece<kSlot, Plan::kVSlots>(step);
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
      barriers.pv_done.warp_arrive();
      barriers.pv_done.wait((work.steps - 1) & 1);
      store_p();
      rescale_output<0, kOutputs>();
      barriers.p_ready.wait((work.steps - 1) & 1);
      ptx::pin_accumulators<kOutputs>(o);
      last_pv_phase<0>(work.steps);
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
    const Ring ring{base + Plan::kRingOffset, base + Plan::kBarrierOffset + Plan::kFixedBarriers * 8};
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
      if (warp == 0 && ptx::elect_one()) {
        SeesawProducer<Plan> producer{params, work, RingWriter<Plan::kSlots, Plan::kSlotBytes>(ring)};
        producer.run(base, barriers.q_full);
      }
    } else {
      ptx::claim_registers<kConsumerRegisters>();
      const int warpgroup = warp / 4 - 1;
      const int row = warp % 4 * 16 + threadIdx.x % 32 / 4;
      SeesawConsumer<Element, Plan, Ring> consumer{
          params.a,
          work,
          barriers,
          ring,
          ptx::k_major_descriptor(base),
          ptx::k_major_descriptor(base + Plan::kPOffset),
          ptx::k_major_descriptor(ring.data + warpgroup * Plan::kOwnKeys * Plan::kRowBytes),
          ptx::mn_major_descriptor(ring.data + warpgroup * (Plan::kOwnColumns / 64) * Plan::kBoxBytes,
                                   Plan::kBoxBytes),
          base + Plan::kPOffset,
          reinterpret_cast<float(*)[2][Plan::kRows]>(shared + Plan::kStatOffset),
          warpgroup,
          row,
          ColumnLimit(work.query_row, work.query_row + row, params.a.kv_len, params.a.causal,
                      params.a.causal_offset)};
      consumer.run();
    }
  }
};

}  // namespace ffpa::hopper
