// Attention for head dims 64..320 on Hopper: a producer lane streams tiles of K and V through a ring; two to four
// consumer warpgroups own 64 query rows each, keep P in registers and take turns at the tensor cores, so that one's
// softmax runs beside another's products. docs/kernels/hopper.md draws the schedule.
#pragma once

#include "core/kernel_entry.cuh"
#include "kernels/hopper/bm128_plan.cuh"
#include "kernels/hopper/mask_tile.cuh"
#include "kernels/hopper/output.cuh"
#include "kernels/hopper/slot_ring.cuh"
#include "kernels/hopper/softmax.cuh"
#include "kernels/hopper/tile_work.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"

namespace ffpa::hopper {

// The barriers of Q's buffer, which the tiles of a block use in turn.
struct QBarriers {
  ptx::Mbarrier full;   // counts Q's bytes
  ptx::Mbarrier empty;  // one arrival of each consumer warp after its last QK^T of a tile
};

// The lane that keeps the ring filled, tile after tile: K of step 0, then for each step K of the next step and V of
// this one. So K of a tile, and Q as soon as its buffer is free, come while the tile before ends.
template <class Plan>
struct Bm128Producer {
  const abi::TmaAttentionParams& params;
  RingWriter<Plan::kSlots, Plan::kSlotBytes> writer;
  u32 q;  // shared-memory address
  QBarriers q_barriers;
  typename Plan::Order order;
  TileWork work;
  u32 q_parity = 0;

  __device__ __forceinline__ Bm128Producer(const abi::TmaAttentionParams& params,
                                           SlotRing<Plan::kSlots, Plan::kSlotBytes> ring, u32 q, QBarriers q_barriers)
      : params(params),
        writer(ring),
        q(q),
        q_barriers(q_barriers),
        order(params.a, params.a.q_tiles, blockIdx.x),
        work(work_at()) {}

  __device__ __forceinline__ TileWork work_at() const {
    return TileWork::of_tile<Plan::kRows, Plan::kKeys>(params.a, order);
  }

  __device__ __forceinline__ void load_q() {
    q_barriers.empty.wait(q_parity ^ 1);
    q_barriers.full.arrive_expect(Plan::kQBytes);
#pragma unroll
    for (int group = 0; group < Plan::kColumnGroups; ++group) {
      ptx::load_tile(q + group * Plan::kQGroupBytes, params.q_map, {group * 64, work.query_row, work.head, work.batch},
                     q_barriers.full);
    }
    q_parity ^= 1;
  }

  __device__ __forceinline__ void load_keys(const abi::TensorMap& map, int step) {
    writer.open(Plan::kSlotBytes);
#pragma unroll
    for (int group = 0; group < Plan::kColumnGroups; ++group) {
      ptx::load_tile(writer.address() + group * Plan::kKvGroupBytes, map,
                     {group * 64, work.first_key(step, Plan::kKeys), work.kv_head, work.batch}, writer.full());
    }
    writer.advance();
  }

  // What the tile at hand begins with.
  __device__ __forceinline__ void start_tile() {
    if (work.steps == 0) return;
    load_keys(params.k_map, 0);
    load_q();
  }

  // After `start_tile` of the first tile.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;;) {
#pragma unroll 1
      for (int step = 1; step <= work.steps; ++step) {
        if (step < work.steps) load_keys(params.k_map, step);
        load_keys(params.v_map, step - 1);
      }
      order.advance();
      if (order.at_end()) return;
      work = work_at();
      start_tile();
    }
  }
};

// Order in which the consumer warpgroups issue their products: 0, 1, .. and 0 again. One named barrier a warpgroup, on
// which it waits for its predecessor.
template <int kWarpgroups>
struct Turns {
  static constexpr int kFirstBarrier = 1;  // 0 is __syncthreads

  int warpgroup;

  // The first turn is warpgroup 0's: the last one passes it on before any, and 0 takes what is left over at the end, so
  // that each barrier sees as many arrivals as waits.
  __device__ __forceinline__ void begin() const {
    if (warpgroup == kWarpgroups - 1) pass();
  }
  __device__ __forceinline__ void end() const {
    if (warpgroup == 0) wait();
  }

  __device__ __forceinline__ void wait() const { ptx::named_barrier_sync(kFirstBarrier + warpgroup, 256); }

  __device__ __forceinline__ void pass() const {
    const int next = warpgroup == kWarpgroups - 1 ? 0 : warpgroup + 1;
    ptx::named_barrier_arrive(kFirstBarrier + next, 256);
  }
};

template <class Element, class Plan>
struct Bm128Consumer {
  using Units = ScoreUnits<Plan::kMasked>;
  static constexpr int kScores = Plan::kKeys / 2;            // a thread
  static constexpr int kOutputs = Plan::kColumnGroups * 32;  // a thread
  // Whether the next tile is found beside the last product of a tile. With a mask there are no registers for two tiles.
  static constexpr bool kEarlyNext = Plan::kPersistent && !Plan::kMasked;

  const abi::AttentionParams& a;
  RingReader<Plan::kSlots, Plan::kSlotBytes> reader;
  MaskReader<Element, Plan> mask;  // unless there is none
  Turns<Plan::kWarpgroups> turns;
  ptx::WgmmaDescriptor q_descriptor;
  ptx::WgmmaDescriptor k_descriptor;  // of slot 0
  ptx::WgmmaDescriptor v_descriptor;  // of slot 0
  QBarriers q_barriers;
  int row;  // of the thread's first row in the tile
  u32 q_parity = 0;

  // Of the tile at hand.
  TileWork work;
  ColumnLimit limit;
  float o[kOutputs];
  float s[kScores];
  u32 packed_p[kScores / 2];  // as wgmma takes A: four registers for 16 keys
  float maximum[2];           // in Units
  float sum[2];
  float rescale[2];  // what the step multiplies O with
  int last_v_slot;

  __device__ __forceinline__ void issue_qk(int slot) {
    ptx::wgmma_fence();
    ptx::forget(q_descriptor.low);
    const ptx::WgmmaDescriptor k_tile = k_descriptor.advance(slot * Plan::kSlotBytes);
#pragma unroll
    for (int k = 0; k < Plan::kColumnGroups * 4; ++k) {
      const ptx::WgmmaDescriptor qk = q_descriptor.advance(k / 4 * Plan::kQGroupBytes + k % 4 * 32);
      const ptx::WgmmaDescriptor kk = k_tile.advance(k / 4 * Plan::kKvGroupBytes + k % 4 * 32);
      if (k == 0) {
        ptx::Wgmma<Plan::kKeys>::template ss<Element, ptx::BMajor::k, 0>(s, qk, kk);
      } else {
        ptx::Wgmma<Plan::kKeys>::template ss<Element, ptx::BMajor::k, 1>(s, qk, kk);
      }
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void issue_pv(int slot) {
    ptx::wgmma_fence();
    ptx::forget(v_descriptor.low);
    const ptx::WgmmaDescriptor v_tile = v_descriptor.advance(slot * Plan::kSlotBytes);
#pragma unroll
    for (int k = 0; k < Plan::kKeys / 16; ++k) {
      issue_pv_columns<0>(packed_p + 4 * k, v_tile.advance(k * 16 * Plan::kRowBytes));
    }
    ptx::wgmma_commit();
  }

  template <int kFrom>
  __device__ __forceinline__ void issue_pv_columns(const u32* p_tile, ptx::WgmmaDescriptor v_tile) {
    constexpr int kLeft = Plan::kColumnGroups * 64 - kFrom;
    if constexpr (kLeft > 0) {
      constexpr int kWidth = kLeft <= 256 ? kLeft : 192;
      ptx::Wgmma<kWidth>::template rs<Element, ptx::BMajor::n, 1>(o + kFrom / 2, p_tile,
                                                                  v_tile.advance(kFrom / 64 * Plan::kKvGroupBytes));
      issue_pv_columns<kFrom + kWidth>(p_tile, v_tile);
    }
  }

  // Scores to weights, in place.
  __device__ __forceinline__ void softmax(int step) {
    const int first_column = work.first_key(step, Plan::kKeys);
    const float factor = Units::factor(a);
    if constexpr (Plan::kMasked) {
      if constexpr (Plan::kEarlyMask) {
        if (step == 0) mask.fetch(a);
        mask.apply_fetched(a, s);
      } else {
        mask.apply(a, s);
      }
    } else {
      apply_sign<kScores>(s, a.scale_log2);
    }
    if (limit.touches(first_column + Plan::kKeys)) {
      limit.template apply<kScores>(s, first_column + threadIdx.x % 4 * 2);
    }
    float larger[2];
    row_max<kScores>(s, larger);
    float scaled_max[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      larger[i] = fmaxf(maximum[i], larger[i]);
      rescale[i] = ptx::ex2((maximum[i] - larger[i]) * factor);
      maximum[i] = larger[i];
      scaled_max[i] = larger[i] * factor;
      sum[i] *= rescale[i];
    }
    if constexpr (Plan::kMasked) subtract_huge<kScores>(s, maximum, scaled_max);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int half = i / 2 % 2;
      s[i] = ptx::ex2(fmaf(s[i], factor, -scaled_max[half]));
      sum[half] += s[i];
    }
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) packed_p[i] = ptx::pack2<Element>(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void rescale_output() {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] *= rescale[i / 2 % 2];
    ptx::pin_accumulators<kOutputs>(o);
  }

  __device__ __forceinline__ void run() {
    typename Plan::Order order(a, a.q_tiles, blockIdx.x);
    work = TileWork::of_tile<Plan::kRows, Plan::kKeys>(a, order);
    turns.begin();
#pragma unroll 1
    do {
      start_tile();
      TileWork next = work;
      if (work.steps > 0) {
        multiply();
        if constexpr (kEarlyNext) next = work_after(order);
        ptx::wgmma_wait<0>();
        ptx::pin_accumulators<kOutputs>(o);
        reader.release(last_v_slot);
      } else if constexpr (kEarlyNext) {
        next = work_after(order);
      }
      store_output();
      if constexpr (!Plan::kPersistent) break;
      if constexpr (!kEarlyNext) next = work_after(order);
      work = next;
    } while (!order.at_end());
    turns.end();
  }

  __device__ __forceinline__ TileWork work_after(typename Plan::Order& order) const {
    order.advance();
    if (order.at_end()) return work;
    return TileWork::of_tile<Plan::kRows, Plan::kKeys>(a, order);
  }

  // After the last QK^T of the tile.
  __device__ __forceinline__ void give_back_q() const { q_barriers.empty.warp_arrive(); }

  __device__ __forceinline__ void start_tile() {
    limit = ColumnLimit(work.query_row, work.query_row + row, a.kv_len, !Plan::kMasked && a.causal, a.causal_offset);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maximum[i] = Units::kMaxFloor;
      sum[i] = 0.f;
    }
  }

  // All products of a tile; the last one is left in flight.
  __device__ __forceinline__ void multiply() {
    const int first_k_slot = reader.next();
    q_barriers.full.wait(q_parity);
    q_parity ^= 1;
    issue_qk(first_k_slot);
    ptx::wgmma_wait<0>();
    ptx::pin_accumulators<kScores>(s);
    reader.release(first_k_slot);
    if (work.steps == 1) give_back_q();
    softmax(0);
    pack_weights();
#pragma unroll 1
    for (int step = 1; step < work.steps; ++step) {
      const int k_slot = reader.next();
      turns.wait();
      issue_qk(k_slot);
      rescale_output();
      const int v_slot = reader.next();
      issue_pv(v_slot);
      turns.pass();
      if constexpr (Plan::kMasked && Plan::kEarlyMask) mask.fetch(a);
      ptx::wgmma_wait<1>();
      ptx::pin_accumulators<kScores>(s);
      reader.release(k_slot);
      if (step == work.steps - 1) give_back_q();
      softmax(step);
      ptx::wgmma_wait<0>();
      ptx::pin_accumulators<kOutputs>(o);
      reader.release(v_slot);
      pack_weights();
    }
    rescale_output();
    last_v_slot = reader.next();
    issue_pv(last_v_slot);
  }

  __device__ __forceinline__ void store_output() {
    Element* head_output = static_cast<Element*>(a.o) + work.batch * a.o_stride.batch + work.head * a.o_stride.head;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = work.query_row + row + 8 * i;
      const float total = quad_sum(sum[i]);
      const bool exists = query < a.q_len;
      store_row_fragment<Element, kOutputs>(o, i, inverse_or_zero(total), head_output + query * a.o_stride.row, 0,
                                            a.head_dim, exists);
      if (a.lse != nullptr && exists && threadIdx.x % 4 == 0) {
        const long long head_index = static_cast<long long>(work.batch) * a.heads + work.head;
        a.lse[head_index * a.q_len + query] = log_sum_exp(maximum[i], total, Units::natural(a));
      }
    }
  }
};

template <class Variant, int kWarpgroups>
struct OwnRows {
  using Params = abi::TmaAttentionParams;
  using Element = typename Variant::Element;
  using Plan = Bm128Plan<Variant::kHeadDim, Variant::kBias, kWarpgroups>;
  using MaskRing = SlotRing<Plan::kMaskSlots, Plan::kMaskBytes>;

  static constexpr int kThreads = Plan::kThreads;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSmemBytes = Plan::kSmemBytes;
  static constexpr int kTileM = Plan::kRows;
  static constexpr int kTileN = Plan::kKeys;
  static constexpr int kCluster = 1;
  static constexpr int kBoxCols = 64;
  static constexpr int kBoxQRows = Plan::kRows;
  static constexpr int kBoxKvRows = Plan::kKeys;
  static constexpr int kSwizzle = 128;
  static constexpr int kPersistent = Plan::kPersistent;

  static __device__ __forceinline__ MaskRing mask_ring(u32 base, int warpgroup) {
    return {base + Plan::kMaskOffset + warpgroup * Plan::kMaskSlots * Plan::kMaskBytes,
            base + Plan::kMaskBarrierOffset + warpgroup * Plan::kMaskSlots * 16};
  }

  static __device__ __forceinline__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = ptx::shared_address(shared);
    const QBarriers q_barriers{{base + Plan::kBarrierOffset}, {base + Plan::kBarrierOffset + 8}};
    const SlotRing<Plan::kSlots, Plan::kSlotBytes> ring{base + Plan::kRingOffset, base + Plan::kBarrierOffset + 16};
    const int warp = ptx::uniform(threadIdx.x / 32);

    const auto init_barriers = [&] {
      q_barriers.full.init(1);
      q_barriers.empty.init(4 * Plan::kWarpgroups);
      ring.init(4 * Plan::kWarpgroups);
      for (int i = 0; Plan::kMasked && i < Plan::kWarpgroups; ++i) mask_ring(base, i).init(128, 32);
      ptx::fence_mbarrier_init();
    };
    // Of the whole block; each role comes to it on its own way.
    const auto barriers_are_ready = [] { ptx::named_barrier_sync(0, Plan::kThreads); };

    if (warp >= Plan::kConsumerThreads / 32) {
      ptx::release_registers<Plan::kProducerRegisters>();
      if (warp == Plan::kConsumerThreads / 32) {
        const bool elected = ptx::elect_one();
        if (elected) {
          for (const abi::TensorMap* map : {&params.k_map, &params.q_map, &params.v_map})
            ptx::prefetch_tensor_map(*map);
          init_barriers();
        }
        Bm128Producer<Plan> producer(params, ring, base, q_barriers);
        if (elected) producer.start_tile();  // nobody else need be there for it
        __syncwarp();
        barriers_are_ready();
        if (elected) producer.run();
      } else {
        barriers_are_ready();
        const int warpgroup = warp - Plan::kConsumerThreads / 32 - 1;  // the mask loader's, if there are so many
        if (Plan::kMasked && warpgroup < Plan::kWarpgroups) {
          MaskLoader<Plan> loader{params.a, RingWriter<Plan::kMaskSlots, Plan::kMaskBytes>(mask_ring(base, warpgroup)),
                                  warpgroup};
          loader.run();
        }
      }
    } else {
      barriers_are_ready();
      ptx::claim_registers<Plan::kConsumerRegisters>();
      const int warpgroup = warp / 4;
      Bm128Consumer<Element, Plan> consumer{params.a,
                                            RingReader<Plan::kSlots, Plan::kSlotBytes>(ring),
                                            {mask_ring(base, warpgroup)},
                                            {warpgroup},
                                            ptx::k_major_descriptor(base + warpgroup * 64 * Plan::kRowBytes),
                                            ptx::k_major_descriptor(ring.data),
                                            ptx::mn_major_descriptor(ring.data, Plan::kKvGroupBytes),
                                            q_barriers,
                                            warp * 16 + static_cast<int>(threadIdx.x) % 32 / 4};
      consumer.run();
    }
  }
};

template <class Variant>
using Bm128 = OwnRows<Variant, 2>;

}  // namespace ffpa::hopper
