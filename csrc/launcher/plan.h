// A prepared attention call: everything that depends on shapes, strides, dtypes and scalars is worked out once, and a
// call replaces pointers and launches.
#pragma once

#include <optional>
#include <vector>

#include "launcher/driver.h"
#include "launcher/fields.h"
#include "launcher/tensor_map.h"

namespace ffpa::launcher {

// Immutable after construction: a call works on its own copy of the parameters, so that threads can share a plan.
class AttentionPlan : public ffi::Object {
 public:
  // `query` [B, Hq, Nq, D], `key` and `value` [B, Hkv, Nkv, D], `mask` [B, Hq, Nq, Nkv] or null are examples of the
  // tensors that calls will bring. `problem` has causal, scale, mask_kind, q_tiles, dropout_p, splits, kv_per_split.
  // Each of `launches` has kernel, grid (three numbers), boxes: () or the boxes (cols, rows, swizzle) of Q, K and V,
  // and mask_alignment: the bytes on which rows of the mask must start, with dense columns; 1 for any mask.
  AttentionPlan(Driver driver, const ffi::Array<Fields>& launches, const Fields& problem, const DLTensor& query,
                const DLTensor& key, const DLTensor& value, const DLTensor* mask);

  // The result is whether query, key, value and mask have the shapes, strides, dtypes and device of the plan, and the
  // mask its alignment; if not, nothing was done. Not an error: the caller looks plans up by less than that, and an
  // exception costs more than a call. Arguments: query, key, value, mask or None, out [B, Hq, Nq, D], lse [B, Hq, Nq]
  // float32 contiguous or None; with dropout also seed and offset (numbers, or int64 device scalars when a graph
  // captures) and the number added to a device offset; with splits > 1 also partial_o [splits, B, Hq, Nq, D] and
  // partial_stats [splits, B, Hq, Nq, 2], float32.
  void operator()(ffi::PackedArgs arguments, ffi::Any* result) const;

 private:
  struct Launch {
    Kernel kernel;
    unsigned int grid[3];
    bool has_maps;
    abi::TensorMap maps[3];  // of Q, K, V at the example's addresses
  };

  void SetMaskAlignment(const ffi::Array<Fields>& launches, const DLTensor* mask);
  void FillShapes(const Fields& problem);
  void AddLaunch(const Fields& launch, void* const addresses[3]);
  void SetOutputs(const ffi::PackedArgs& arguments, abi::AttentionParams& params) const;
  void SetDropout(const ffi::PackedArgs& arguments, abi::AttentionParams& params) const;
  void SetWorkspace(const ffi::PackedArgs& arguments, int first, abi::AttentionParams& params) const;
  void LaunchOne(const Launch& launch, abi::TmaAttentionParams& params, driver::Stream stream) const;
  [[noreturn]] void ThrowMismatch(const char* name, const DLTensor& tensor) const;

  Driver driver_;
  Signature query_, key_, value_, mask_;
  bool dropout_;
  int argument_count_;
  std::uintptr_t mask_alignment_ = 1;
  abi::AttentionParams params_ = {};
  void* example_[3];
  std::vector<Launch> launches_;
  std::string subject_;  // "kernel <id>", for messages
  driver::Device device_;
  driver::Context context_;
};

}  // namespace ffpa::launcher
