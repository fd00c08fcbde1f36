#include "launcher/tensor_map.h"

#include "launcher/errors.h"

namespace ffpa::launcher {

namespace {

driver::TensorMapSwizzle SwizzleOf(int bytes, const std::string& subject) {
  switch (bytes) {
    case 0:
      return driver::kSwizzleNone;
    case 32:
      return driver::kSwizzle32B;
    case 64:
      return driver::kSwizzle64B;
    case 128:
      return driver::kSwizzle128B;
    default:
      ThrowValueError(subject + ": swizzle must be 0, 32, 64 or 128 bytes, got " + std::to_string(bytes));
  }
}

}  // namespace

abi::TensorMap EncodeTensorMap(const DriverObj& driver, const Signature& tensor, void* address, const TensorMapBox& box,
                               const std::string& subject) {
  constexpr int kRank = 4;
  constexpr std::uint64_t kElementBytes = 2;
  // The map lists dimensions from the innermost: D, N, H, B; the stride of D is implied.
  std::uint64_t dims[kRank];
  std::uint64_t strides[kRank - 1];
  for (int i = 0; i < kRank; ++i) dims[i] = static_cast<std::uint64_t>(tensor.shape[kRank - 1 - i]);
  std::uint64_t packed = dims[0] * kElementBytes;
  for (int i = 1; i < kRank; ++i) {
    // A dimension of one element is never stepped over; any legal stride serves.
    const std::uint64_t stride = static_cast<std::uint64_t>(tensor.stride[kRank - 1 - i]) * kElementBytes;
    strides[i - 1] = dims[i] == 1 ? packed : stride;
    packed = strides[i - 1] * dims[i];
  }
  const std::uint32_t box_dims[kRank] = {static_cast<std::uint32_t>(box.cols), static_cast<std::uint32_t>(box.rows), 1,
                                         1};
  const std::uint32_t element_strides[kRank] = {1, 1, 1, 1};
  const bool half = tensor.dtype.code == kDLFloat;
  abi::TensorMap map;
  driver.Check(
      driver.entry.cuTensorMapEncodeTiled(&map, half ? driver::kMapFloat16 : driver::kMapBfloat16, kRank, address, dims,
                                          strides, box_dims, element_strides, driver::kInterleaveNone,
                                          SwizzleOf(box.swizzle, subject), driver::kPromoteL2To256B, driver::kFillZero),
      "cuTensorMapEncodeTiled", subject);
  return map;
}

}  // namespace ffpa::launcher
