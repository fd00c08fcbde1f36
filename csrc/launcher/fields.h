// Typed reads of the dictionaries in which Python hands over facts.
#pragma once

#include <tvm/ffi/tvm_ffi.h>

#include <optional>
#include <string>

#include "launcher/errors.h"

namespace ffpa::launcher {

namespace ffi = tvm::ffi;

using Fields = ffi::Map<ffi::String, ffi::Any>;

template <typename T>
T Field(const Fields& fields, const char* key) {
  auto found = fields.find(key);
  if (found == fields.end()) ThrowValueError(std::string("field '") + key + "' is missing");
  std::optional<T> value = (*found).second.try_cast<T>();
  if (!value.has_value()) {
    ThrowValueError(std::string("field '") + key + "' has the wrong type: " + (*found).second.GetTypeKey());
  }
  return *std::move(value);
}

}  // namespace ffpa::launcher
