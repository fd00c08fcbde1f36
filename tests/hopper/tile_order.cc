// The deal of csrc/kernels/hopper/tile_order.cuh, run on the host: every block of a grid walks through its tiles.
#include <algorithm>

#define __device__
#define __host__
#define __forceinline__ inline

namespace {
struct Index {
  unsigned int x, y, z;
};
Index blockIdx, gridDim;
}  // namespace

using std::max;
using std::min;

#include "kernels/hopper/tile_order.cuh"

namespace {

// Writes the block of every tile to owners[head * q_tiles + tile], -2 where two have it, and the place in the order of
// the block's tiles to turns. Returns false when a block names a tile that does not exist.
template <ffpa::hopper::Deal kDeal, bool kMasked>
bool Deal(const ffpa::abi::AttentionParams& params, int q_tiles, int blocks, int* owners, int* turns) {
  gridDim = {static_cast<unsigned int>(blocks), 1, 1};
  const unsigned int heads = static_cast<unsigned int>(params.heads) * params.batch;
  for (int block = 0; block < blocks; ++block) {
    blockIdx = {static_cast<unsigned int>(block), 0, 0};
    ffpa::hopper::TileOrder<kDeal, kMasked> order(params, q_tiles, block);
    for (int turn = 0; !order.at_end(); ++turn, order.advance()) {
      unsigned int head, tile;
      order.find(head, tile);
      if (head >= heads || tile >= static_cast<unsigned int>(q_tiles)) return false;
      const unsigned int at = head * q_tiles + tile;
      owners[at] = owners[at] == -1 ? block : -2;
      turns[at] = turn;
    }
  }
  return true;
}

}  // namespace

extern "C" int deal(int persistent, int masked, int causal, int batch, int heads, int group, int kv_len, int head_dim,
                    int q_tiles, int blocks, int* owners, int* turns) {
  ffpa::abi::AttentionParams params = {};
  params.batch = batch;
  params.heads = heads;
  params.group = group;
  params.kv_len = kv_len;
  params.head_dim = head_dim;
  params.causal = causal;
  using ffpa::hopper::Deal;
  if (persistent && masked) return ::Deal<Deal::persistent, true>(params, q_tiles, blocks, owners, turns);
  if (persistent) return ::Deal<Deal::persistent, false>(params, q_tiles, blocks, owners, turns);
  if (masked) return ::Deal<Deal::hardware, true>(params, q_tiles, blocks, owners, turns);
  return ::Deal<Deal::hardware, false>(params, q_tiles, blocks, owners, turns);
}
