// Exceptions of the launcher. Each kind is registered with a Python class by ffpa_attn/launcher.py.
#pragma once

#include <tvm/ffi/error.h>

#include <string>

namespace ffpa::launcher {

// A driver call failed, or a kernel and its manifest row disagree.
[[noreturn]] inline void ThrowLaunchError(const std::string& message) {
  throw tvm::ffi::Error("ffpa_attn.LaunchError", message, "");
}

// A pointer is not aligned as the kernels need; the caller may copy that tensor and try again.
[[noreturn]] inline void ThrowMisaligned(const std::string& message) {
  throw tvm::ffi::Error("ffpa_attn.MisalignedError", message, "");
}

// Arguments do not fit the plan or the kernel: a mistake of the calling Python code.
[[noreturn]] inline void ThrowValueError(const std::string& message) {
  throw tvm::ffi::Error("ValueError", message, "");
}

}  // namespace ffpa::launcher
