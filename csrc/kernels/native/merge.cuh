// native.merge: joins the partial results of native.split_kv.
//
// Split i of a row gave O_i, normalised, the maximum m_i of its scores and l_i = sum exp(score - m_i). With M = max m_i
// and w_i = l_i exp(m_i - M): O = sum w_i O_i / sum w_i and LSE = M + log sum w_i. One block a row; any head dim.
#pragma once

#include "abi/attention_params.h"
#include "core/kernel_entry.cuh"
#include "core/types.cuh"
#include "ptx/math.cuh"

namespace ffpa::native {

template <class Variant>
struct Merge {
  using Params = abi::AttentionParams;
  using Element = typename Variant::Element;
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSmemBytes = 0;
  static constexpr int kTileM = 1;
  static constexpr int kTileN = 1;
  static constexpr int kCluster = 1;
  static constexpr int kBoxCols = 0;  // no tensor maps
  static constexpr int kBoxQRows = 0;
  static constexpr int kBoxKvRows = 0;
  static constexpr int kSwizzle = 0;
  static constexpr int kPersistent = 0;

  static __device__ __forceinline__ void run(const Params& p) {
    const i64 rows = static_cast<i64>(p.batch) * p.heads * p.q_len;
    const i64 row = blockIdx.x;
    const float2* stats = reinterpret_cast<const float2*>(p.partial_stats) + row;
    float top = -ptx::infinity();
    for (int i = 0; i < p.splits; ++i) top = fmaxf(top, stats[i * rows].x);
    const float origin = top == -ptx::infinity() ? 0.0f : top;  // no key at all: every weight is 0
    float sum = 0.0f;
    for (int i = 0; i < p.splits; ++i) sum += weight(stats[i * rows], origin);
    const float inverse = sum == 0.0f ? 0.0f : ptx::rcp(sum);

    const int query = static_cast<int>(row % p.q_len);
    const int batch_head = static_cast<int>(row / p.q_len);
    const int batch = batch_head / p.heads;
    u16* out = static_cast<u16*>(p.o) + batch * p.o_stride.batch + (batch_head - batch * p.heads) * p.o_stride.head +
               query * p.o_stride.row;
    for (int col = 2 * threadIdx.x; col < p.head_dim; col += 2 * kThreads) {
      const float* partial = p.partial_o + row * p.head_dim + col;
      float x = 0.0f;
      float y = 0.0f;
#pragma unroll 4
      for (int i = 0; i < p.splits; ++i) {
        const float w = weight(stats[i * rows], origin) * inverse;
        const float2 part = *reinterpret_cast<const float2*>(partial + i * rows * p.head_dim);
        x += w * part.x;
        y += w * part.y;
      }
      const u32 pair = ptx::pack2<Element>(x, y);
      out[col] = static_cast<u16>(pair);
      out[col + 1] = static_cast<u16>(pair >> 16);
    }
    if (threadIdx.x == 0 && p.lse != nullptr) {
      p.lse[row] = sum == 0.0f ? -ptx::infinity() : origin + ptx::lg2(sum) * ptx::kLn2;
    }
  }

 private:
  static __device__ __forceinline__ float weight(float2 stat, float origin) {
    return stat.y * ptx::ex2((stat.x - origin) * ptx::kLog2e);
  }
};

}  // namespace ffpa::native
