// Kernels that show what reached the device: O = Q + K, read through pointers or through tensor maps. One block a tile
// of 64 query rows; K has as many rows as Q.
#include "abi/attention_params.h"

namespace {

constexpr int kRows = 64;
constexpr int kCols = 64;
constexpr unsigned kBoxBytes = kRows * kCols * 2;

struct Place {
  int row0, head, batch;
};

__device__ Place place_of(const ffpa::abi::AttentionParams& p) {
  const int block = blockIdx.x;
  const int head_index = block / p.q_tiles;
  return {(block - head_index * p.q_tiles) * kRows, head_index % p.heads, head_index / p.heads};
}

__device__ float to_float(unsigned short bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

// Inputs are small integers, so that the sum is a bfloat16 exactly.
__device__ unsigned short to_bf16(float value) { return static_cast<unsigned short>(__float_as_uint(value) >> 16); }

__device__ void store(const ffpa::abi::AttentionParams& p, const Place& at, int row, int col, float value) {
  auto* o = static_cast<unsigned short*>(p.o) + at.batch * p.o_stride.batch + at.head * p.o_stride.head;
  o[row * p.o_stride.row + col] = to_bf16(value);
  if (col == 0 && p.lse != nullptr) {
    p.lse[(static_cast<long long>(at.batch) * p.heads + at.head) * p.q_len + row] = static_cast<float>(row);
  }
}

}  // namespace

extern "C" __global__ void probe_pointers(const __grid_constant__ ffpa::abi::AttentionParams p) {
  const Place at = place_of(p);
  const auto* q = static_cast<const unsigned short*>(p.q) + at.batch * p.q_stride.batch + at.head * p.q_stride.head;
  const auto* k =
      static_cast<const unsigned short*>(p.k) + at.batch * p.k_stride.batch + at.head / p.group * p.k_stride.head;
  for (int i = threadIdx.x; i < kRows * p.head_dim; i += blockDim.x) {
    const int row = at.row0 + i / p.head_dim;
    const int col = i % p.head_dim;
    if (row < p.q_len) {
      store(p, at, row, col, to_float(q[row * p.q_stride.row + col]) + to_float(k[row * p.k_stride.row + col]));
    }
  }
}

extern "C" __global__ void probe_maps(const __grid_constant__ ffpa::abi::TmaAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const ffpa::abi::AttentionParams& p = params.a;
  const Place at = place_of(p);
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const unsigned barrier = base + 2 * kBoxBytes;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  for (int col0 = 0, phase = 0; col0 < p.head_dim; col0 += kCols, phase ^= 1) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(2 * kBoxBytes) : "memory");
      for (int i = 0; i < 2; ++i) {
        const void* map = i == 0 ? &params.q_map : &params.k_map;
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
            "%5}], [%6];" ::"r"(base + i * kBoxBytes),
            "l"(map), "r"(col0), "r"(at.row0), "r"(i == 0 ? at.head : at.head / p.group), "r"(at.batch), "r"(barrier)
            : "memory");
      }
    }
    unsigned done = 0;
    while (done == 0) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(barrier), "r"(phase)
                   : "memory");
    }
    const auto* boxes = reinterpret_cast<const unsigned short*>(shared);
    for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) {
      const int row = at.row0 + i / kCols;
      const int col = col0 + i % kCols;
      const float sum = to_float(boxes[i]) + to_float(boxes[kRows * kCols + i]);
      if (row < p.q_len && col < p.head_dim) store(p, at, row, col, sum);
    }
    __syncthreads();
  }
}
