// bm128 with three consumer warpgroups, 192 query rows a tile: for head dims up to 64, whose O leaves registers for
// them.
#pragma once

#include "kernels/hopper/bm128.cuh"

namespace ffpa::hopper {

template <class Variant>
using Bm192 = OwnRows<Variant, 3>;

}  // namespace ffpa::hopper
