// The CUDA driver as the launcher sees it, and the kernels loaded through it.
#pragma once

#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "launcher/driver_api.h"

namespace ffpa::launcher {

namespace ffi = tvm::ffi;

class DriverObj;

// What the manifest says about a kernel.
struct KernelFacts {
  std::string id;
  std::string entry;
  int param_bytes;
  int threads;
  int smem_bytes;
  int cluster;  // blocks along x; 1 = none
};

// One loaded kernel. Loaded kernels are independent of contexts and stay loaded until the process ends, because a
// captured CUDA graph may hold them.
class KernelObj : public ffi::Object {
 public:
  KernelObj(const DriverObj* driver, KernelFacts facts, driver::Kernel handle)
      : facts(std::move(facts)), handle(handle), driver_(driver) {}

  // Allows the kernel its shared memory and cluster size on `device`. The first call for a device does the work.
  void PrepareForDevice(driver::Device device);

  const KernelFacts facts;
  const driver::Kernel handle;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("ffpa_attn.Kernel", KernelObj, ffi::Object);

 private:
  const DriverObj* driver_;  // owns this kernel
  std::mutex mutex_;
  std::vector<driver::Device> prepared_;
};

class Kernel : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Kernel, ffi::ObjectRef, KernelObj);
};

class DriverObj : public ffi::Object {
 public:
  // `addresses[i]` is the address of the entry point called `names[i]`. Tensors must be on `device_type` (a
  // DLDeviceType).
  DriverObj(const ffi::Array<ffi::String>& names, const ffi::Array<int64_t>& addresses, int device_type);

  // Throws LaunchError that names `subject`, `call` and the driver's own words unless `result` is success.
  void Check(driver::Result result, const char* call, const std::string& subject) const {
    if (result != 0) ThrowFailure(result, call, subject);
  }

  // The kernel with this key, loaded from `image` unless it is loaded already. Safe to call from many threads.
  Kernel Load(const std::string& key, KernelFacts facts, const ffi::Bytes& image);

  driver::Device DeviceOf(int ordinal) const;

  // The primary context of a device: the one that torch works in.
  driver::Context PrimaryContext(driver::Device device);

  driver::EntryPoints entry;
  const int device_type;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("ffpa_attn.Driver", DriverObj, ffi::Object);

 private:
  [[noreturn]] void ThrowFailure(driver::Result result, const char* call, const std::string& subject) const;
  void CheckParameters(driver::Kernel kernel, const KernelFacts& facts) const;

  std::mutex mutex_;
  std::map<std::string, Kernel> kernels_;
  std::map<driver::Device, driver::Context> contexts_;
};

class Driver : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Driver, ffi::ObjectRef, DriverObj);
};

// Makes a device's context current for a scope, unless the thread is on that device already.
class ContextGuard {
 public:
  ContextGuard(const DriverObj& driver, driver::Device device, driver::Context context, const std::string& subject);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  const DriverObj& driver_;
  bool pushed_ = false;
};

}  // namespace ffpa::launcher
