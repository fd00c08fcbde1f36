// Tensor maps of Q, K and V for the bulk tensor copy engine.
#pragma once

#include "launcher/driver.h"
#include "launcher/tensor_view.h"

namespace ffpa::launcher {

// The block that one copy moves: `cols` elements along D and `rows` rows of one head of one batch.
struct TensorMapBox {
  int cols;
  int rows;
  int swizzle;  // bytes: 0, 32, 64, 128
};

// Encodes a rank-4 map (D, N, H, B) of a tensor [B, H, N, D] of 2-byte elements; reads outside give zeros.
abi::TensorMap EncodeTensorMap(const DriverObj& driver, const Signature& tensor, void* address, const TensorMapBox& box,
                               const std::string& subject);

}  // namespace ffpa::launcher
