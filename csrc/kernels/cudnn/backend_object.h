// Objects of cuDNN's graph API, which its headers call the backend: each is a bag of attributes
// that is finalized once and constant from then on.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace ortmodule::cudnn {

/// The first call that fails decides: later ones do nothing, and finalize() is false.
class BackendObject {
 public:
  explicit BackendObject(cudnnBackendDescriptorType_t type)
      : status_(cudnnBackendCreateDescriptor(type, &object_)) {}
  BackendObject(BackendObject&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), status_(other.status_) {}
  BackendObject& operator=(BackendObject&&) = delete;
  BackendObject(const BackendObject&) = delete;
  ~BackendObject() {
    if (object_) cudnnBackendDestroyDescriptor(object_);
  }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           std::span<const T> values) {
    if (status_ != CUDNN_STATUS_SUCCESS) return;
    status_ = cudnnBackendSetAttribute(object_, name, type, static_cast<int64_t>(values.size()),
                                       values.data());
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, std::span<const T>(&value, 1));
  }
  void set(cudnnBackendAttributeName_t name, std::span<const int64_t> numbers) {
    set(name, CUDNN_TYPE_INT64, numbers);
  }
  void set(cudnnBackendAttributeName_t name, std::string_view text) {
    set(name, CUDNN_TYPE_CHAR, std::span<const char>(text));
  }
  void set(cudnnBackendAttributeName_t name, const BackendObject& part) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, part.object_);
  }

  /// Whether the object can be used.
  bool finalize() {
    if (status_ == CUDNN_STATUS_SUCCESS) status_ = cudnnBackendFinalize(object_);
    return status_ == CUDNN_STATUS_SUCCESS;
  }

  /// How many elements the attribute has, of which it fills in as many as `to` has room for; 0 if
  /// the object has no such attribute.
  template <class T>
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
              std::span<T> to) const {
    int64_t count = 0;
    const cudnnStatus_t status = cudnnBackendGetAttribute(
        object_, name, type, static_cast<int64_t>(to.size()), &count, to.data());
    return status == CUDNN_STATUS_SUCCESS ? count : 0;
  }

  cudnnBackendDescriptor_t raw() const { return object_; }

 private:
  cudnnBackendDescriptor_t object_ = nullptr;
  cudnnStatus_t status_;
};

}  // namespace ortmodule::cudnn
