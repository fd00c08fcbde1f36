#include "launcher/plan.h"

#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "launcher/errors.h"

namespace ffpa::launcher {

namespace {

enum Argument { kQuery, kKey, kValue, kMask, kOut, kLse, kSeed, kOffset, kOffsetValue };
constexpr int kPlainArguments = kLse + 1;
constexpr int kDropoutArguments = 3;
constexpr int kWorkspaceArguments = 2;
constexpr std::int64_t kStatsARow = 2;  // a split's row maximum and row sum
constexpr std::int64_t kMaxGridX = INT_MAX;
constexpr std::int64_t kMaxGridYZ = 65535;
constexpr double kLog2E = 1.4426950408889634074;

bool IsHalfType(DLDataType dtype) {
  return (dtype.code == kDLBfloat || dtype.code == kDLFloat) && dtype.bits == 16 && dtype.lanes == 1;
}

bool IsType(DLDataType dtype, int code, int bits) {
  return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

int ToInt(std::int64_t value, const char* name) {
  if (value < 0 || value > INT_MAX) {
    ThrowValueError(std::string(name) + " must be in 0 .. 2^31-1, got " + std::to_string(value));
  }
  return static_cast<int>(value);
}

// Rows that kernels read in 16-byte pieces: unit stride along D, and every other stride a multiple of 16 bytes.
void CheckRowStrides(const Signature& tensor, const char* name) {
  bool good = tensor.shape[3] == 1 || tensor.stride[3] == 1;
  for (int i = 0; i < 3; ++i) good = good && tensor.stride[i] * 2 % static_cast<int>(kAlignment) == 0;
  if (!good) {
    ThrowMisaligned(std::string(name) +
                    " must have unit stride along its last dimension and strides of a multiple of " +
                    "16 bytes along the others");
  }
}

void CheckMask(const Signature& mask, const Signature& query, const Signature& key, abi::MaskKind kind) {
  const std::int64_t want[4] = {query.shape[0], query.shape[1], query.shape[2], key.shape[2]};
  for (int i = 0; i < 4; ++i) {
    if (mask.shape[i] != want[i]) ThrowValueError("attn_mask must be expanded to [B, Hq, Nq, Nkv]");
  }
  const DLDataType dtype = mask.dtype;
  bool good = false;
  if (kind == abi::MaskKind::boolean) good = IsType(dtype, kDLBool, 8);
  if (kind == abi::MaskKind::additive) good = dtype.code == query.dtype.code && dtype.bits == query.dtype.bits;
  if (kind == abi::MaskKind::additive_f32) good = IsType(dtype, kDLFloat, 32);
  if (!good) ThrowValueError("attn_mask's dtype does not fit its kind");
}

}  // namespace

AttentionPlan::AttentionPlan(Driver driver, const ffi::Array<Fields>& launches, const Fields& problem,
                             const DLTensor& query, const DLTensor& key, const DLTensor& value, const DLTensor* mask)
    : driver_(std::move(driver)),
      query_(Signature::Of(query, 4, "query")),
      key_(Signature::Of(key, 4, "key")),
      value_(Signature::Of(value, 4, "value")),
      example_{Address(query), Address(key), Address(value)} {
  if (launches.empty()) ThrowValueError("a plan needs at least one launch");
  const auto kind = Field<int64_t>(problem, "mask_kind");
  if (kind < 0 || kind > static_cast<int>(abi::MaskKind::additive_f32)) {
    ThrowValueError("mask_kind must be 0 .. 3, got " + std::to_string(kind));
  }
  params_.mask_kind = static_cast<abi::MaskKind>(kind);
  if ((mask != nullptr) != (params_.mask_kind != abi::MaskKind::none)) {
    ThrowValueError("a mask goes with a mask_kind other than none, and only with one");
  }
  if (mask != nullptr) mask_ = Signature::Of(*mask, 4, "attn_mask");
  FillShapes(problem);

  subject_ = "kernel " + Field<Kernel>(launches[0], "kernel")->facts.id;
  SetMaskAlignment(launches, mask);
  device_ = driver_->DeviceOf(query_.device.device_id);
  context_ = driver_->PrimaryContext(device_);
  for (const Fields& launch : launches) AddLaunch(launch, example_);
}

void AttentionPlan::FillShapes(const Fields& problem) {
  const Signature* tensors[] = {&query_, &key_, &value_};
  const char* names[] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    const Signature& tensor = *tensors[i];
    if (!IsHalfType(tensor.dtype) || tensor.dtype.code != query_.dtype.code) {
      ThrowValueError(std::string(names[i]) + " must be float16 or bfloat16, the same for query, key and value");
    }
    if (tensor.device.device_type != driver_->device_type || tensor.device.device_id != query_.device.device_id) {
      ThrowValueError(std::string(names[i]) + " must be on the launcher's kind of device, the same for all tensors");
    }
    if (tensor.shape[0] != query_.shape[0] || tensor.shape[3] != query_.shape[3]) {
      ThrowValueError(std::string(names[i]) + " must have query's batch and head dim");
    }
    for (std::int64_t size : tensor.shape) {
      if (size < 1) ThrowValueError(std::string(names[i]) + " is empty");
    }
    CheckRowStrides(tensor, names[i]);
  }
  if (key_.shape[1] != value_.shape[1] || key_.shape[2] != value_.shape[2]) {
    ThrowValueError("key and value must have one shape");
  }
  if (query_.shape[1] % key_.shape[1] != 0) ThrowValueError("query's heads must be a multiple of key's heads");

  abi::AttentionParams& p = params_;
  p.q_stride = query_.Strides();
  p.k_stride = key_.Strides();
  p.v_stride = value_.Strides();
  p.batch = ToInt(query_.shape[0], "batch");
  p.heads = ToInt(query_.shape[1], "heads");
  p.kv_heads = ToInt(key_.shape[1], "kv_heads");
  p.q_len = ToInt(query_.shape[2], "q_len");
  p.kv_len = ToInt(key_.shape[2], "kv_len");
  p.head_dim = ToInt(query_.shape[3], "head_dim");
  p.group = p.heads / p.kv_heads;
  p.causal = Field<bool>(problem, "causal") ? 1 : 0;
  p.causal_offset = p.kv_len - p.q_len;
  if (p.mask_kind != abi::MaskKind::none) {
    CheckMask(mask_, query_, key_, p.mask_kind);
    p.mask_stride = mask_.Strides();
    p.mask_col_stride = mask_.stride[3];
  }
  const double scale = Field<double>(problem, "scale");
  p.scale = static_cast<float>(scale);
  p.scale_log2 = static_cast<float>(scale * kLog2E);
  p.q_tiles = ToInt(Field<int64_t>(problem, "q_tiles"), "q_tiles");

  const double drop_p = Field<double>(problem, "dropout_p");
  if (!(drop_p >= 0.0 && drop_p < 1.0)) ThrowValueError("dropout_p must be in [0, 1)");
  dropout_ = drop_p > 0.0;
  p.drop_p = static_cast<float>(drop_p);
  p.inv_keep = static_cast<float>(1.0 / (1.0 - drop_p));
  p.splits = ToInt(Field<int64_t>(problem, "splits"), "splits");
  p.kv_per_split = ToInt(Field<int64_t>(problem, "kv_per_split"), "kv_per_split");
  if (p.splits < 1) ThrowValueError("splits must be at least 1");
  argument_count_ = kPlainArguments + (dropout_ ? kDropoutArguments : 0) + (p.splits > 1 ? kWorkspaceArguments : 0);
}

void AttentionPlan::SetMaskAlignment(const ffi::Array<Fields>& launches, const DLTensor* mask) {
  for (const Fields& launch : launches) {
    const auto alignment = Field<int64_t>(launch, "mask_alignment");
    if (alignment != 1 && alignment != static_cast<int64_t>(kAlignment)) {
      ThrowValueError("mask_alignment must be 1 or 16, got " + std::to_string(alignment));
    }
    mask_alignment_ = std::max(mask_alignment_, static_cast<std::uintptr_t>(alignment));
  }
  if (mask_alignment_ == 1 || mask == nullptr) return;
  bool good = mask_.shape[3] == 1 || mask_.stride[3] == 1;
  for (int i = 0; i < 3; ++i) {
    good = good && mask_.stride[i] * (mask_.dtype.bits / 8) % static_cast<std::int64_t>(kAlignment) == 0;
  }
  if (!good) {
    ThrowValueError(subject_ + ": attn_mask must have dense columns and rows that start on 16 bytes, got " +
                    Describe(*mask));
  }
}

void AttentionPlan::AddLaunch(const Fields& fields, void* const addresses[3]) {
  Launch launch;
  launch.kernel = Field<Kernel>(fields, "kernel");
  KernelObj* kernel = launch.kernel.operator->();
  const std::string subject = "kernel " + kernel->facts.id;

  const auto grid = Field<ffi::Array<int64_t>>(fields, "grid");
  if (grid.size() != 3) ThrowValueError(subject + ": grid must have three numbers");
  for (int i = 0; i < 3; ++i) {
    if (grid[i] < 1 || grid[i] > (i == 0 ? kMaxGridX : kMaxGridYZ)) {
      ThrowValueError(subject + ": grid dimension " + std::to_string(i) + " cannot be " + std::to_string(grid[i]));
    }
    launch.grid[i] = static_cast<unsigned int>(grid[i]);
  }
  if (launch.grid[0] % kernel->facts.cluster != 0) {
    ThrowValueError(subject + ": grid x must be a multiple of the cluster of " + std::to_string(kernel->facts.cluster) +
                    " blocks, got " + std::to_string(grid[0]));
  }

  const auto boxes = Field<ffi::Array<ffi::Array<int64_t>>>(fields, "boxes");
  if (boxes.size() != 0 && boxes.size() != 3) ThrowValueError(subject + ": boxes must be none or three");
  launch.has_maps = boxes.size() == 3;
  const size_t want = launch.has_maps ? sizeof(abi::TmaAttentionParams) : sizeof(abi::AttentionParams);
  if (static_cast<size_t>(kernel->facts.param_bytes) != want) {
    ThrowLaunchError(subject + ": its parameters have " + std::to_string(kernel->facts.param_bytes) +
                     " bytes, this runtime fills " + std::to_string(want) +
                     "; install the runtime and the pack of one version");
  }
  const Signature* tensors[] = {&query_, &key_, &value_};
  for (int i = 0; launch.has_maps && i < 3; ++i) {
    if (boxes[i].size() != 3) ThrowValueError(subject + ": a box is (cols, rows, swizzle)");
    const TensorMapBox box = {static_cast<int>(boxes[i][0]), static_cast<int>(boxes[i][1]),
                              static_cast<int>(boxes[i][2])};
    launch.maps[i] = EncodeTensorMap(*driver_.get(), *tensors[i], addresses[i], box, subject);
  }
  kernel->PrepareForDevice(device_);
  launches_.push_back(std::move(launch));
}

void AttentionPlan::operator()(ffi::PackedArgs arguments, ffi::Any* result) const {
  *result = false;
  if (arguments.size() != argument_count_) {
    ThrowValueError(subject_ + ": a call takes " + std::to_string(argument_count_) + " arguments, got " +
                    std::to_string(arguments.size()));
  }
  const DLTensor* query = TensorOf(arguments[kQuery], "query");
  const DLTensor* key = TensorOf(arguments[kKey], "key");
  const DLTensor* value = TensorOf(arguments[kValue], "value");
  if (!query_.Matches(*query) || !key_.Matches(*key) || !value_.Matches(*value)) return;

  abi::TmaAttentionParams call;  // the maps are written only for kernels that take them
  call.a = params_;
  call.a.q = Address(*query);
  call.a.k = Address(*key);
  call.a.v = Address(*value);
  if (!IsAligned(call.a.q)) ThrowMisaligned("query's data is not 16-byte aligned");
  if (!IsAligned(call.a.k)) ThrowMisaligned("key's data is not 16-byte aligned");
  if (!IsAligned(call.a.v)) ThrowMisaligned("value's data is not 16-byte aligned");
  if (call.a.mask_kind != abi::MaskKind::none) {
    if (arguments[kMask] == nullptr) return;
    const DLTensor* mask = TensorOf(arguments[kMask], "attn_mask");
    if (!mask_.Matches(*mask)) return;
    call.a.mask = Address(*mask);
    if (reinterpret_cast<std::uintptr_t>(call.a.mask) % mask_alignment_ != 0) return;
  } else if (arguments[kMask] != nullptr) {
    return;
  }
  SetOutputs(arguments, call.a);
  if (dropout_) SetDropout(arguments, call.a);
  if (call.a.splits > 1) {
    SetWorkspace(arguments, kPlainArguments + (dropout_ ? kDropoutArguments : 0), call.a);
  }

  driver::Stream stream = TVMFFIEnvGetStream(query_.device.device_type, query_.device.device_id);
  ContextGuard guard(*driver_.get(), device_, context_, subject_);
  for (const Launch& launch : launches_) LaunchOne(launch, call, stream);
  *result = true;
}

void AttentionPlan::SetOutputs(const ffi::PackedArgs& arguments, abi::AttentionParams& params) const {
  const DLTensor* out = TensorOf(arguments[kOut], "out");
  if (!query_.SameShape(*out)) ThrowMismatch("out", *out);
  const Signature layout = Signature::Of(*out, 4, "out");
  CheckRowStrides(layout, "out");
  params.o = Address(*out);
  params.o_stride = layout.Strides();
  if (!IsAligned(params.o)) ThrowMisaligned("out's data is not 16-byte aligned");
  if (arguments[kLse] == nullptr) return;

  const DLTensor* lse = TensorOf(arguments[kLse], "lse");
  if (lse->ndim != 3 || lse->shape[0] != query_.shape[0] || lse->shape[1] != query_.shape[1] ||
      lse->shape[2] != query_.shape[2] || !IsType(lse->dtype, kDLFloat, 32) || !ffi::IsContiguous(*lse) ||
      lse->device.device_id != query_.device.device_id || lse->device.device_type != query_.device.device_type) {
    ThrowMismatch("lse", *lse);
  }
  params.lse = static_cast<float*>(Address(*lse));
}

void AttentionPlan::SetDropout(const ffi::PackedArgs& arguments, abi::AttentionParams& params) const {
  const std::optional<int64_t> seed = arguments[kSeed].try_cast<int64_t>();
  const std::optional<int64_t> offset = arguments[kOffset].try_cast<int64_t>();
  if (seed.has_value() != offset.has_value()) ThrowValueError("seed and offset must both be numbers or both tensors");
  if (seed.has_value()) {
    params.seed_value = static_cast<unsigned long long>(*seed);
    params.offset_value = static_cast<unsigned long long>(*offset);
    return;
  }
  const DLTensor* tensors[] = {TensorOf(arguments[kSeed], "seed"), TensorOf(arguments[kOffset], "offset")};
  for (const DLTensor* tensor : tensors) {
    if (!IsType(tensor->dtype, kDLInt, 64) || tensor->device.device_type != query_.device.device_type ||
        tensor->device.device_id != query_.device.device_id) {
      ThrowValueError("seed and offset must be int64 tensors on query's device");
    }
  }
  params.philox_seed = static_cast<const long long*>(Address(*tensors[0]));
  params.philox_offset = static_cast<const long long*>(Address(*tensors[1]));
  params.offset_value = static_cast<unsigned long long>(arguments[kOffsetValue].cast<int64_t>());
}

void AttentionPlan::SetWorkspace(const ffi::PackedArgs& arguments, int first, abi::AttentionParams& params) const {
  const char* names[] = {"partial_o", "partial_stats"};
  void* pointers[2];
  for (int i = 0; i < 2; ++i) {
    const DLTensor* tensor = TensorOf(arguments[first + i], names[i]);
    bool good = tensor->ndim == 5 && tensor->shape[0] == params_.splits && IsType(tensor->dtype, kDLFloat, 32) &&
                ffi::IsContiguous(*tensor) && tensor->device.device_id == query_.device.device_id &&
                tensor->device.device_type == query_.device.device_type &&
                tensor->shape[4] == (i == 0 ? query_.shape[3] : kStatsARow);
    for (int d = 1; good && d < 4; ++d) good = tensor->shape[d] == query_.shape[d - 1];
    if (!good) ThrowMismatch(names[i], *tensor);
    pointers[i] = Address(*tensor);
    if (!IsAligned(pointers[i])) ThrowMisaligned(std::string(names[i]) + "'s data is not 16-byte aligned");
  }
  params.partial_o = static_cast<float*>(pointers[0]);
  params.partial_stats = static_cast<float*>(pointers[1]);
}

void AttentionPlan::LaunchOne(const Launch& launch, abi::TmaAttentionParams& call, driver::Stream stream) const {
  const KernelFacts& facts = launch.kernel->facts;
  void* parameters = &call.a;
  if (launch.has_maps) {
    const void* addresses[] = {call.a.q, call.a.k, call.a.v};
    abi::TensorMap* maps[] = {&call.q_map, &call.k_map, &call.v_map};
    for (int i = 0; i < 3; ++i) {
      *maps[i] = launch.maps[i];
      if (addresses[i] == example_[i]) continue;
      driver_->Check(driver_->entry.cuTensorMapReplaceAddress(maps[i], const_cast<void*>(addresses[i])),
                     "cuTensorMapReplaceAddress", subject_);
    }
    parameters = &call;
  }
  driver::LaunchAttribute attribute = {};
  attribute.id = driver::kClusterDimension;
  attribute.value.cluster = {static_cast<unsigned int>(facts.cluster), 1, 1};
  driver::LaunchConfig config = {};
  config.grid_x = launch.grid[0];
  config.grid_y = launch.grid[1];
  config.grid_z = launch.grid[2];
  config.block_x = static_cast<unsigned int>(facts.threads);
  config.block_y = config.block_z = 1;
  config.shared_bytes = static_cast<unsigned int>(facts.smem_bytes);
  config.stream = stream;
  config.attributes = &attribute;
  config.attribute_count = facts.cluster > 1 ? 1 : 0;
  void* kernel_parameters[] = {parameters};
  driver_->Check(driver_->entry.cuLaunchKernelEx(&config, launch.kernel->handle, kernel_parameters, nullptr),
                 "cuLaunchKernelEx", launch.kernel->facts.id);
}

void AttentionPlan::ThrowMismatch(const char* name, const DLTensor& tensor) const {
  ThrowValueError(subject_ + ": " + name + " does not fit the plan: got " + Describe(tensor));
}

}  // namespace ffpa::launcher
