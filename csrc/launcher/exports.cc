// The functions that ffpa_attn/launcher.py calls.
#include <tvm/ffi/tvm_ffi.h>

#include "launcher/driver.h"
#include "launcher/fields.h"
#include "launcher/plan.h"

namespace ffpa::launcher {

namespace {

// The driver's entry points that the launcher wants: symbol -> whether it cannot do without.
ffi::Map<ffi::String, bool> EntryPointNames() {
  ffi::Map<ffi::String, bool> names;
#define FFPA_NAME_REQUIRED(name, parameters) names.Set(#name, true);
#define FFPA_NAME_OPTIONAL(name, parameters) names.Set(#name, false);
  FFPA_DRIVER_REQUIRED(FFPA_NAME_REQUIRED)
  FFPA_DRIVER_OPTIONAL(FFPA_NAME_OPTIONAL)
#undef FFPA_NAME_REQUIRED
#undef FFPA_NAME_OPTIONAL
  return names;
}

Driver OpenDriver(ffi::Array<ffi::String> names, ffi::Array<int64_t> addresses, int device_type) {
  return Driver(ffi::make_object<DriverObj>(names, addresses, device_type));
}

// `key` names the content of the image; a key is loaded once in the life of `driver`.
Kernel LoadKernel(Driver driver, ffi::String key, Fields facts, ffi::Bytes image) {
  KernelFacts kernel;
  kernel.id = Field<ffi::String>(facts, "id");
  kernel.entry = Field<ffi::String>(facts, "entry");
  kernel.param_bytes = Field<int>(facts, "param_bytes");
  kernel.threads = Field<int>(facts, "threads");
  kernel.smem_bytes = Field<int>(facts, "smem_bytes");
  kernel.cluster = Field<int>(facts, "cluster");
  if (kernel.threads < 1 || kernel.threads > 1024 || kernel.smem_bytes < 0 || kernel.cluster < 1) {
    ThrowValueError("kernel " + kernel.id + ": threads, smem_bytes or cluster is out of range");
  }
  return driver->Load(key, std::move(kernel), image);
}

ffi::Function MakeAttentionPlan(Driver driver, ffi::Array<Fields> launches, Fields problem, ffi::AnyView query,
                                ffi::AnyView key, ffi::AnyView value, ffi::AnyView mask) {
  auto plan = ffi::make_object<AttentionPlan>(driver, launches, problem, *TensorOf(query, "query"),
                                              *TensorOf(key, "key"), *TensorOf(value, "value"),
                                              mask == nullptr ? nullptr : TensorOf(mask, "attn_mask"));
  return ffi::Function::FromPacked([plan](ffi::PackedArgs arguments, ffi::Any* result) { (*plan)(arguments, result); });
}

// Sizes of the parameter structs, by the manifest's param_bytes.
ffi::Map<ffi::String, int64_t> ParameterSizes() {
  return {{"attention", static_cast<int64_t>(sizeof(abi::AttentionParams))},
          {"attention_tma", static_cast<int64_t>(sizeof(abi::TmaAttentionParams))},
          {"pack_abi", abi::kPackAbi}};
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(entry_point_names, EntryPointNames)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(open_driver, OpenDriver)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(load_kernel, LoadKernel)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_attention_plan, MakeAttentionPlan)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(abi_facts, ParameterSizes)

}  // namespace ffpa::launcher
