// Loads the launcher as Python would on Windows and prints what two of its functions say.
#include <tvm/ffi/tvm_ffi.h>
#include <windows.h>

#include <cstdio>
#include <string>

namespace ffi = tvm::ffi;

int main(int, char** arguments) {
  if (LoadLibraryA(arguments[1]) == nullptr) return 2;
  HMODULE launcher = LoadLibraryA(arguments[2]);
  if (launcher == nullptr) return 3;
  auto function = [launcher](const char* name) {
    return reinterpret_cast<TVMFFISafeCallType>(reinterpret_cast<void*>(GetProcAddress(launcher, name)));
  };

  TVMFFIAny result = {};
  if (function("__tvm_ffi_abi_facts")(nullptr, nullptr, 0, &result) != 0) return 4;
  auto facts = ffi::Any(ffi::AnyView::CopyFromTVMFFIAny(result)).cast<ffi::Map<ffi::String, std::int64_t>>();
  for (auto fact : facts)
    std::printf("%s=%lld\n", std::string(fact.first).c_str(), static_cast<long long>(fact.second));

  // An exception inside stays inside and comes out as an error.
  if (function("__tvm_ffi_load_kernel")(nullptr, nullptr, 0, &result) == 0) return 5;
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  std::printf("error=%s\n", raised == nullptr ? "" : TVMFFIErrorGetCellPtr(raised)->kind.data);
}
