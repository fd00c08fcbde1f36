// Launch parameters of every attention kernel, shared by kernels (NVRTC, nvcc) and by the launcher (g++).
// Plain data; no includes, because NVRTC has no standard headers. Strides count elements and are 64-bit.
#pragma once

namespace ffpa::abi {

// Increase when a struct in this folder or the meaning of a manifest field changes; a pack built for another number is
// turned away by the runtime.
inline constexpr int kPackAbi = 1;

struct Strides {
  long long batch;
  long long head;
  long long row;
};

// Element type of `mask`.
enum class MaskKind : int {
  none = 0,
  boolean = 1,   // one byte an element, nonzero = attend
  additive = 2,  // the query's dtype, added to scale * QK^T
  additive_f32 = 3,
};

// Q [B, Hq, Nq, D], K and V [B, Hkv, Nkv, D], O [B, Hq, Nq, D] with unit stride along D; LSE [B, Hq, Nq] float32,
// contiguous, natural logarithm. D is the caller's head dim: columns D .. compiled head dim are read as zero and never
// written.
struct AttentionParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;        // null: not wanted
  const void* mask;  // null unless mask_kind != none; broadcast dimensions have stride 0

  Strides q_stride;
  Strides k_stride;
  Strides v_stride;
  Strides o_stride;
  Strides mask_stride;
  long long mask_col_stride;

  int batch;
  int heads;
  int kv_heads;
  int q_len;
  int kv_len;
  int head_dim;
  int group;          // heads / kv_heads
  int causal;         // 1: row r attends to columns <= r + causal_offset
  int causal_offset;  // kv_len - q_len, tail-aligned
  MaskKind mask_kind;

  float scale;       // softmax scale
  float scale_log2;  // scale * log2(e)

  int q_tiles;  // ceil(q_len / tile_m)

  // Dropout: Philox4x32-10; an element is kept when its uniform > drop_p.
  float drop_p;
  float inv_keep;                   // 1 / (1 - drop_p)
  const long long* philox_seed;     // device pointers to the numbers of the call, which a graph replay draws anew;
  const long long* philox_offset;   // or null. Offsets are in counters, of four words each
  unsigned long long seed_value;    // used when the pointers are null
  unsigned long long offset_value;  // added to *philox_offset when the pointers are set

  // Split-KV decode: partial results in float32. partial_o [splits, B, Hq, Nq, D] is each split's own O; partial_stats
  // [splits, B, Hq, Nq, 2] holds the maximum m of the row's scaled and masked scores and the sum of exp(score - m),
  // kept apart because m + log(sum) forgets the sum where a mask has made m huge.
  int splits;
  int kv_per_split;  // keys a split, a multiple of the kernel's tile_n
  float* partial_o;
  float* partial_stats;
};

// An encoded CUtensorMap, opaque here so that kernels need no CUDA header.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// Parameters of kernels that read Q, K and V through the bulk tensor copy engine.
struct TmaAttentionParams {
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;
  AttentionParams a;
};

}  // namespace ffpa::abi
