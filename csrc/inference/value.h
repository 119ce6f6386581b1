// Values that callers, bindings and runs share without copies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "inference/host_tensor.h"

namespace ortmodule {

/// A tensor whose memory is shared. It may have an element type that the engine lacks.
struct SharedTensor {
  int element_type = 0;  // as ONNX numbers it
  Sizes sizes;
  Sizes strides{};  // in elements, of any sign; empty: row-major
  void* data = nullptr;
  std::shared_ptr<void> owner{};  // keeps the memory; none: the caller does
  bool read_only = false;
  int device = kOnHost;  // of the memory

  /// The engine's element type; Undefined if it lacks it.
  DType dtype() const;
  HostTensorView view() const { return {dtype(), sizes, data, strides, device}; }
  /// Of the elements, without gaps.
  int64_t byte_count() const;
};

/// A tensor, a sequence of tensors, or an empty optional.
struct SharedValue {
  std::vector<SharedTensor> tensors;
  bool is_sequence = false;

  SharedValue() = default;
  SharedValue(SharedTensor tensor) { tensors.push_back(std::move(tensor)); }  // NOLINT: one tensor
  /// Takes over the memory of a result.
  explicit SharedValue(HostResult result);

  bool is_tensor() const { return !is_sequence && tensors.size() == 1; }
  bool has_value() const { return is_sequence || !tensors.empty(); }
  /// The tensor. Throws Error if the value is none.
  const SharedTensor& tensor() const;
  /// As onnxruntime writes it: "tensor(float)", "seq(tensor(float))".
  std::string type_text() const;
};

/// The bytes of a row-major tensor. Throws Error for negative or too large sizes, and for types
/// that ONNX lacks or whose elements have no size (strings).
int64_t tensor_bytes(int element_type, const Sizes& sizes);

/// A row-major tensor in zeroed memory of its own. Throws Error as above.
SharedTensor new_tensor(int element_type, const Sizes& sizes, int device = kOnHost);

/// A row-major copy in memory of its own on the host.
SharedTensor copy_of(const SharedTensor& tensor);
/// The tensor itself if it is on the host, else such a copy.
SharedTensor on_host(const SharedTensor& tensor);

/// Copies elements of the same type, between any devices. Sizes may differ if their product does
/// not and `to` is row-major. Throws Error otherwise, or if `to` is read-only, and for memory with
/// gaps on a device.
void copy_tensor(const SharedTensor& from, const SharedTensor& to);

}  // namespace ortmodule
