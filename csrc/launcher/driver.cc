#include "launcher/driver.h"

#include <algorithm>
#include <cstring>

#include "launcher/elf_check.h"
#include "launcher/errors.h"

namespace ffpa::launcher {

namespace {

constexpr int kPortableClusterSize = 8;

template <typename Function>
void Assign(Function& slot, const char* name, const std::map<std::string, int64_t>& table, bool required) {
  auto found = table.find(name);
  if (found == table.end() || found->second == 0) {
    if (required) ThrowLaunchError(std::string("the CUDA driver has no ") + name);
    return;
  }
  slot = reinterpret_cast<Function>(static_cast<std::uintptr_t>(found->second));
}

}  // namespace

DriverObj::DriverObj(const ffi::Array<ffi::String>& names, const ffi::Array<int64_t>& addresses, int device_type)
    : device_type(device_type) {
  if (names.size() != addresses.size()) ThrowValueError("names and addresses must have one length");
  std::map<std::string, int64_t> table;
  for (size_t i = 0; i < names.size(); ++i) table[std::string(names[i])] = addresses[i];
#define FFPA_ASSIGN_REQUIRED(name, parameters) Assign(entry.name, #name, table, true);
#define FFPA_ASSIGN_OPTIONAL(name, parameters) Assign(entry.name, #name, table, false);
  FFPA_DRIVER_REQUIRED(FFPA_ASSIGN_REQUIRED)
  FFPA_DRIVER_OPTIONAL(FFPA_ASSIGN_OPTIONAL)
#undef FFPA_ASSIGN_REQUIRED
#undef FFPA_ASSIGN_OPTIONAL
}

void DriverObj::ThrowFailure(driver::Result result, const char* call, const std::string& subject) const {
  const char* name = nullptr;
  const char* text = nullptr;
  // An unknown result leaves the pointers null.
  entry.cuGetErrorName(result, &name);
  entry.cuGetErrorString(result, &text);
  std::string message = subject + ": " + call + " failed: ";
  message += name != nullptr ? std::string(name) : "CUDA error " + std::to_string(result);
  if (text != nullptr) message += std::string(" (") + text + ")";
  ThrowLaunchError(message);
}

void DriverObj::CheckParameters(driver::Kernel kernel, const KernelFacts& facts) const {
  if (entry.cuKernelGetParamInfo == nullptr) return;  // driver older than CUDA 12.4
  size_t offset = 0;
  size_t size = 0;
  // Only the first one is asked for: asking for one that is not there shows as an error in compute-sanitizer.
  Check(entry.cuKernelGetParamInfo(kernel, 0, &offset, &size), "cuKernelGetParamInfo", "kernel " + facts.id);
  // The offset is no contract: a struct that needs 64-byte alignment (tensor maps) starts past the bank's first bytes.
  if (size != static_cast<size_t>(facts.param_bytes)) {
    ThrowLaunchError("kernel " + facts.id + ": its parameter has " + std::to_string(size) +
                     " bytes, the manifest says " + std::to_string(facts.param_bytes) +
                     "; the pack was built from other sources than this runtime");
  }
}

Kernel DriverObj::Load(const std::string& key, KernelFacts facts, const ffi::Bytes& image) {
  // One lock for lookup and load: threads that want the same kernel wait for it instead of loading it twice.
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = kernels_.find(key);
  if (found != kernels_.end()) return found->second;

  const std::string subject = "kernel " + facts.id;
  if (const char* defect = FindElfDefect(image.data(), image.size())) {
    ThrowLaunchError(subject + ": the cubin is damaged: " + defect);
  }
  // The driver copies the image; it reads ELF headers in place, so they must be aligned.
  std::vector<std::uint64_t> aligned((image.size() + 7) / 8);
  std::memcpy(aligned.data(), image.data(), image.size());
  driver::Library library = nullptr;
  Check(entry.cuLibraryLoadData(&library, aligned.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData", subject);
  driver::Kernel handle = nullptr;
  Check(entry.cuLibraryGetKernel(&handle, library, facts.entry.c_str()), "cuLibraryGetKernel", subject);
  CheckParameters(handle, facts);
  Kernel kernel(ffi::make_object<KernelObj>(this, std::move(facts), handle));
  kernels_.emplace(key, kernel);
  return kernel;
}

driver::Device DriverObj::DeviceOf(int ordinal) const {
  driver::Device device = 0;
  Check(entry.cuDeviceGet(&device, ordinal), "cuDeviceGet", "device " + std::to_string(ordinal));
  return device;
}

driver::Context DriverObj::PrimaryContext(driver::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = contexts_.find(device);
  if (found != contexts_.end()) return found->second;
  driver::Context context = nullptr;
  Check(entry.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain",
        "device " + std::to_string(device));
  contexts_.emplace(device, context);
  return context;
}

void KernelObj::PrepareForDevice(driver::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(prepared_.begin(), prepared_.end(), device) != prepared_.end()) return;
  const std::string subject = "kernel " + facts.id;
  auto set = driver_->entry.cuKernelSetAttribute;
  driver_->Check(set(driver::kMaxDynamicSharedSizeBytes, facts.smem_bytes, handle, device),
                 "cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)", subject);
  if (facts.cluster > kPortableClusterSize) {
    driver_->Check(set(driver::kNonPortableClusterSizeAllowed, 1, handle, device),
                   "cuKernelSetAttribute(NON_PORTABLE_CLUSTER_SIZE_ALLOWED)", subject);
  }
  prepared_.push_back(device);
}

ContextGuard::ContextGuard(const DriverObj& driver, driver::Device device, driver::Context context,
                           const std::string& subject)
    : driver_(driver) {
  driver::Context current = nullptr;
  driver.Check(driver.entry.cuCtxGetCurrent(&current), "cuCtxGetCurrent", subject);
  if (current == context) return;
  driver::Device current_device = 0;
  // Another context of the same device (a green context, say) is the caller's choice: leave it.
  if (current != nullptr && driver.entry.cuCtxGetDevice(&current_device) == 0 && current_device == device) return;
  driver.Check(driver.entry.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent", subject);
  pushed_ = true;
}

ContextGuard::~ContextGuard() {
  driver::Context popped = nullptr;
  // A destructor cannot report; what follows on this thread would fail with the driver's own error.
  if (pushed_) driver_.entry.cuCtxPopCurrent_v2(&popped);
}

}  // namespace ffpa::launcher
