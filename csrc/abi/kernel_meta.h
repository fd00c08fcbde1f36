// The facts of a compiled kernel, defined next to it as the symbol <entry>_meta; the build reads them from the cubin
// into the manifest, and so nothing about a kernel is written twice.
#pragma once

namespace ffpa::abi {

struct KernelMeta {
  unsigned int schema;       // kMetaSchema
  unsigned int threads;      // a block
  unsigned int smem_bytes;   // dynamic shared memory a block
  unsigned int tile_m;       // query rows a block
  unsigned int tile_n;       // keys a step
  unsigned int cluster;      // blocks a cluster along x; 1 = none
  unsigned int param_bytes;  // sizeof the parameter struct
  unsigned int box_cols;     // tensor-map box, elements along D; 0 = no tensor maps
  unsigned int box_q_rows;
  unsigned int box_kv_rows;
  unsigned int swizzle;     // bytes of the tensor-map swizzle: 0, 32, 64, 128
  unsigned int persistent;  // 1: the grid is the number of multiprocessors, not of tiles
  unsigned int reserved[4];
};

inline constexpr unsigned int kMetaSchema = 1;

}  // namespace ffpa::abi
