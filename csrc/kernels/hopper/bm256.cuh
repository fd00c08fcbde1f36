// bm128 with four consumer warpgroups, 256 query rows a tile: for head dims up to 64 and calls whose number of tiles
// fills the multiprocessors better so. Its steps are shorter, so a row costs a little more.
#pragma once

#include "kernels/hopper/bm128.cuh"

namespace ffpa::hopper {

template <class Variant>
using Bm256 = OwnRows<Variant, 4>;

}  // namespace ffpa::hopper
