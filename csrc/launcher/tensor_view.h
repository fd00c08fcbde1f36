// Tensors as the launcher checks them: what a plan remembers of an example tensor, and how a call's tensor is compared.
#pragma once

#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <string>

#include "abi/attention_params.h"

namespace ffpa::launcher {

namespace ffi = tvm::ffi;

constexpr std::uintptr_t kAlignment = 16;  // bytes: one cp.async, one tensor-map address

// The DLTensor behind an argument; throws TypeError with `name` for anything else.
const DLTensor* TensorOf(ffi::AnyView argument, const char* name);

inline void* Address(const DLTensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

inline bool IsAligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0; }

// Shape, strides, dtype and device of a tensor of up to four dimensions. The stride of a dimension of one element means
// nothing (producers disagree about it) and is kept as 0.
struct Signature {
  int rank = 0;
  std::int64_t shape[4] = {};
  std::int64_t stride[4] = {};
  DLDataType dtype = {};
  DLDevice device = {};

  static Signature Of(const DLTensor& tensor, int rank, const char* name);
  bool Matches(const DLTensor& tensor) const;
  bool SameShape(const DLTensor& tensor) const;
  abi::Strides Strides() const { return {stride[0], stride[1], stride[2]}; }
};

std::string Describe(const DLTensor& tensor);

}  // namespace ffpa::launcher
