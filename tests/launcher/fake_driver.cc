// A stand-in for the CUDA driver library: it records what the launcher asks for, and fails where a test tells it to.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidImage = 200;

std::mutex guard;
std::string failing_call;
int failing_result = 0;
std::size_t parameter_bytes = 0;
int parameter_count = 1;

std::atomic<int> library_loads{0};
std::atomic<int> launches{0};
std::atomic<int> attribute_calls{0};

struct Record {
  unsigned int config[7];  // grid, block, shared bytes
  void* stream;
  unsigned int attribute_count;
  int attribute_id;
  unsigned int cluster[3];
  void* context;
  void* kernel;
  unsigned char parameters[1024];
} last;
Record history[16];

struct MapRecord {
  int type, rank, interleave, swizzle, promotion, fill;
  std::uint64_t address, dims[4], strides[3];
  std::uint32_t box[4], element_strides[4];
} maps[8];
int map_count = 0;
int replaced_count = 0;

thread_local std::uintptr_t context_stack[8];
thread_local int context_depth = 0;

int attributes[32];

int Outcome(const char* call) {
  std::lock_guard<std::mutex> lock(guard);
  return failing_call == call ? failing_result : 0;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API void fake_reset(std::size_t bytes) {
  std::lock_guard<std::mutex> lock(guard);
  failing_call.clear();
  parameter_bytes = bytes;
  parameter_count = 1;
  library_loads = launches = attribute_calls = 0;
  map_count = replaced_count = 0;
  context_depth = 0;
  std::memset(attributes, 0, sizeof(attributes));
  std::memset(&last, 0, sizeof(last));
}
API void fake_fail(const char* call, int result) {
  std::lock_guard<std::mutex> lock(guard);
  failing_call = call;
  failing_result = result;
}
API void fake_parameters(std::size_t bytes, int count) {
  parameter_bytes = bytes;
  parameter_count = count;
}
API void fake_enter_context(std::uintptr_t context) { context_stack[context_depth++] = context; }
API int fake_context_depth() { return context_depth; }
API int fake_library_loads() { return library_loads; }
API int fake_launches() { return launches; }
API int fake_attribute_calls() { return attribute_calls; }
API int fake_attribute(int id) { return attributes[id]; }
API int fake_map_count() { return map_count; }
API int fake_replaced_count() { return replaced_count; }
API const MapRecord* fake_map(int index) { return &maps[index]; }
API const Record* fake_launch(int index) { return &history[index]; }

API int cuDriverGetVersion(int* version) {
  *version = 12090;
  return 0;
}
API int cuGetErrorName(int result, const char** name) {
  *name = result == kInvalidImage   ? "CUDA_ERROR_INVALID_IMAGE"
          : result == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE"
                                    : nullptr;
  return *name == nullptr ? kInvalidValue : 0;
}
API int cuGetErrorString(int result, const char** text) {
  *text = result == kInvalidImage ? "device kernel image is invalid" : nullptr;
  return *text == nullptr ? kInvalidValue : 0;
}
API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return Outcome("cuDeviceGet");
}
// Contexts are 100 + device for primary ones; 1000 + device for another context of a device.
API int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(100 + device));
  return Outcome("cuDevicePrimaryCtxRetain");
}
API int cuCtxGetCurrent(void** context) {
  *context = context_depth == 0 ? nullptr : reinterpret_cast<void*>(context_stack[context_depth - 1]);
  return 0;
}
API int cuCtxGetDevice(int* device) {
  *device = static_cast<int>(context_stack[context_depth - 1] % 100);
  return 0;
}
API int cuCtxPushCurrent_v2(void* context) {
  fake_enter_context(reinterpret_cast<std::uintptr_t>(context));
  return Outcome("cuCtxPushCurrent");
}
API int cuCtxPopCurrent_v2(void**) {
  --context_depth;
  return 0;
}
API int cuLibraryLoadData(void** library, const void*, void*, void**, unsigned, void*, void**, unsigned) {
  const int result = Outcome("cuLibraryLoadData");
  if (result != 0) return result;
  // Wide enough for a second thread to come in, were the launcher to let it.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  *library = reinterpret_cast<void*>(static_cast<std::uintptr_t>(0x1000 + ++library_loads));
  return 0;
}
API int cuLibraryGetKernel(void** kernel, void* library, const char*) {
  *kernel = library;
  return Outcome("cuLibraryGetKernel");
}
API int cuKernelSetAttribute(int attribute, int value, void*, int) {
  const int result = Outcome("cuKernelSetAttribute");
  if (result == 0) attributes[attribute] = value;
  ++attribute_calls;
  return result;
}
API int cuKernelGetParamInfo(void*, std::size_t index, std::size_t* offset, std::size_t* size) {
  if (static_cast<int>(index) >= parameter_count) return kInvalidValue;
  *offset = 48;  // as for a struct aligned to 64 bytes
  *size = parameter_bytes;
  return Outcome("cuKernelGetParamInfo");
}

struct Attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    unsigned int cluster[3];
  } value;
};
struct Config {
  unsigned int numbers[7];
  void* stream;
  Attribute* attributes;
  unsigned int attribute_count;
};

API int cuLaunchKernelEx(const Config* config, void* kernel, void** parameters, void**) {
  if (failing_result != 0) {
    const int result = Outcome("cuLaunchKernelEx");
    if (result != 0) return result;
  }
  Record record = {};
  std::memcpy(record.config, config->numbers, sizeof(record.config));
  record.stream = config->stream;
  record.attribute_count = config->attribute_count;
  record.kernel = kernel;
  if (config->attribute_count > 0) {
    record.attribute_id = config->attributes[0].id;
    std::memcpy(record.cluster, config->attributes[0].value.cluster, sizeof(record.cluster));
  }
  cuCtxGetCurrent(&record.context);
  std::memcpy(record.parameters, parameters[0], parameter_bytes);
  history[launches++ % 16] = record;
  return 0;
}
API int cuTensorMapEncodeTiled(void* map, int type, std::uint32_t rank, void* address, const std::uint64_t* dims,
                               const std::uint64_t* strides, const std::uint32_t* box,
                               const std::uint32_t* element_strides, int interleave, int swizzle, int promotion,
                               int fill) {
  MapRecord& record = maps[map_count++ % 8];
  record.type = type;
  record.rank = static_cast<int>(rank);
  record.interleave = interleave;
  record.swizzle = swizzle;
  record.promotion = promotion;
  record.fill = fill;
  record.address = reinterpret_cast<std::uint64_t>(address);
  std::memcpy(record.dims, dims, rank * 8);
  std::memcpy(record.strides, strides, (rank - 1) * 8);
  std::memcpy(record.box, box, rank * 4);
  std::memcpy(record.element_strides, element_strides, rank * 4);
  std::memset(map, 0xab, 128);
  std::memcpy(map, &address, 8);
  return Outcome("cuTensorMapEncodeTiled");
}
API int cuTensorMapReplaceAddress(void* map, void* address) {
  std::memcpy(map, &address, 8);
  ++replaced_count;
  return Outcome("cuTensorMapReplaceAddress");
}
