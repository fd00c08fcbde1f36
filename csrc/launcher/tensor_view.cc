#include "launcher/tensor_view.h"

#include "launcher/errors.h"

namespace ffpa::launcher {

namespace {

bool SameDtype(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

bool SameDevice(DLDevice a, DLDevice b) { return a.device_type == b.device_type && a.device_id == b.device_id; }

std::string List(const std::int64_t* values, int count) {
  std::string text = "(";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + ")";
}

}  // namespace

const DLTensor* TensorOf(ffi::AnyView argument, const char* name) {
  const DLTensor* tensor = nullptr;
  if (argument.type_index() == ffi::TypeIndex::kTVMFFITensor) {
    tensor = TVMFFITensorGetDLTensorPtr(argument.CopyToTVMFFIAny().v_obj);
  } else if (argument.type_index() == ffi::TypeIndex::kTVMFFIDLTensorPtr) {
    tensor = static_cast<const DLTensor*>(argument.CopyToTVMFFIAny().v_ptr);
  }
  if (tensor == nullptr) {
    throw ffi::Error("TypeError", std::string(name) + " must be a tensor, got " + argument.GetTypeKey(), "");
  }
  return tensor;
}

Signature Signature::Of(const DLTensor& tensor, int rank, const char* name) {
  if (tensor.ndim != rank || tensor.strides == nullptr) {
    ThrowValueError(std::string(name) + " must have " + std::to_string(rank) + " dimensions and strides, got " +
                    Describe(tensor));
  }
  Signature signature;
  signature.rank = rank;
  signature.dtype = tensor.dtype;
  signature.device = tensor.device;
  for (int i = 0; i < rank; ++i) {
    signature.shape[i] = tensor.shape[i];
    signature.stride[i] = tensor.shape[i] == 1 ? 0 : tensor.strides[i];
  }
  return signature;
}

bool Signature::SameShape(const DLTensor& tensor) const {
  if (tensor.ndim != rank || !SameDtype(tensor.dtype, dtype) || !SameDevice(tensor.device, device)) return false;
  for (int i = 0; i < rank; ++i) {
    if (tensor.shape[i] != shape[i]) return false;
  }
  return true;
}

bool Signature::Matches(const DLTensor& tensor) const {
  if (!SameShape(tensor)) return false;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] != 1 && tensor.strides[i] != stride[i]) return false;
  }
  return true;
}

std::string Describe(const DLTensor& tensor) {
  std::string text = "shape " + List(tensor.shape, tensor.ndim);
  if (tensor.strides != nullptr) text += ", strides " + List(tensor.strides, tensor.ndim);
  text += ", dtype " + std::string(ffi::DLDataTypeToString(tensor.dtype));
  return text + ", device " + std::to_string(tensor.device.device_type) + ":" + std::to_string(tensor.device.device_id);
}

}  // namespace ffpa::launcher
