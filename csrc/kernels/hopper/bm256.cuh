// bm128 with four consumer warpgroups, 256 query rows a tile: for head dims up to 64. Its steps are shorter than those
// of bm192, so a row costs a little more.
#pragma once

#include "kernels/hopper/bm128.cuh"

namespace ffpa::hopper {

template <class Variant>
using Bm256 = OwnRows<Variant, 4>;

}  // namespace ffpa::hopper
