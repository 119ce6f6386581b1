// Ort::Value: tensors and sequences.
#pragma once

#include <ortmodule/ort/memory.h>
#include <ortmodule/ort/type_info.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

struct OrtValue {
  ortmodule::inference::Value value;
};

namespace Ort {

class Value;

namespace detail {

/// What can be read of a value.
template <class Holder>
class ConstValueImpl : public Holder {
 public:
  using Holder::Holder;

  bool IsTensor() const { return value().is_tensor(); }
  bool IsSparseTensor() const { return false; }
  /// False for an optional without an element.
  bool HasValue() const { return value().kind() != ortmodule::inference::Value::Kind::Absent; }
  /// The number of elements of a sequence.
  size_t GetCount() const {
    return translated([&] { return value().elements().size(); });
  }
  /// An element of a sequence; it shares the memory.
  Value GetValue(int index, OrtAllocator* allocator) const;

  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const {
    return translated([&] {
      return TensorTypeAndShapeInfo(static_cast<ONNXTensorElementDataType>(value().type()),
                                    value().sizes());
    });
  }
  TypeInfo GetTypeInfo() const {
    if (IsTensor()) return TypeInfo(ONNX_TYPE_TENSOR, GetTensorTypeAndShapeInfo());
    if (!value().is_sequence()) return TypeInfo();
    const auto& elements = value().elements();
    const auto type = elements.empty() ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED
                                       : static_cast<ONNXTensorElementDataType>(elements[0].type());
    return TypeInfo(ONNX_TYPE_SEQUENCE, TensorTypeAndShapeInfo(type, {}, {}, false));
  }
  ConstMemoryInfo GetTensorMemoryInfo() const { return ConstMemoryInfo(&host_info()); }
  size_t GetTensorSizeInBytes() const {
    return translated([&] { return value().byte_count(); });
  }

  /// The first element as T. The program chooses T: it may be any type that is not larger than an
  /// element.
  template <class T>
  const T* GetTensorData() const {
    return static_cast<const T*>(elements(sizeof(T)));
  }
  const void* GetTensorRawData() const { return elements(1); }
  /// The element at a place, by index.
  template <class T>
  const T& At(const std::vector<int64_t>& location) const {
    return GetTensorData<T>()[offset(location)];
  }

 protected:
  const ortmodule::inference::Value& value() const { return checked(this->p_, "Value").value; }

  const void* elements(size_t element_bytes) const {
    return translated([&] {
      const size_t bytes = ortmodule::inference::byte_size(value().type());
      if (element_bytes > bytes)
        refuse("[Value] elements of type " + ortmodule::inference::name_of(value().type()) +
               " must be read as a type of at most " + std::to_string(bytes) +
               " bytes, but found one of " + std::to_string(element_bytes));
      return value().data();
    });
  }

  size_t offset(const std::vector<int64_t>& location) const {
    return translated([&] {
      const std::vector<int64_t>& sizes = value().sizes();
      if (location.size() != sizes.size())
        refuse("[At] there must be " + std::to_string(sizes.size()) + " indices, but found " +
               std::to_string(location.size()));
      size_t offset = 0;
      for (size_t d = 0; d < sizes.size(); ++d) {
        if (location[d] < 0 || location[d] >= sizes[d])
          refuse("[At] index " + std::to_string(d) + " must be below " + std::to_string(sizes[d]) +
                 ", but found " + std::to_string(location[d]));
        offset = offset * static_cast<size_t>(sizes[d]) + static_cast<size_t>(location[d]);
      }
      return offset;
    });
  }

  static const OrtMemoryInfo& host_info() {
    static const OrtMemoryInfo info;
    return info;
  }
};

/// What can be written, too.
template <class Holder>
class ValueImpl : public ConstValueImpl<Holder> {
 public:
  using ConstValueImpl<Holder>::ConstValueImpl;
  using ConstValueImpl<Holder>::At;

  template <class T>
  T* GetTensorMutableData() {
    this->elements(sizeof(T));
    return static_cast<T*>(GetTensorMutableRawData());
  }
  void* GetTensorMutableRawData() {
    return translated([&] { return this->value().mutable_data(); });
  }
  template <class T>
  T& At(const std::vector<int64_t>& location) {
    return GetTensorMutableData<T>()[this->offset(location)];
  }
};

}  // namespace detail

using ConstValue = detail::ConstValueImpl<detail::Unowned<const OrtValue>>;
using UnownedValue = detail::ValueImpl<detail::Unowned<OrtValue>>;

/// A tensor, a sequence, or nothing. Made of nullptr as an output, it is what the run allocates.
class Value : public detail::ValueImpl<detail::Base<OrtValue>> {
 public:
  Value() = default;
  explicit Value(std::nullptr_t) {}
  explicit Value(OrtValue* value) { p_ = value; }
  explicit Value(ortmodule::inference::Value value) { p_ = new OrtValue{std::move(value)}; }

  ConstValue GetConst() const { return ConstValue(p_); }
  UnownedValue GetUnowned() const { return UnownedValue(p_); }

  /// A tensor in memory of the program, which must live as long as the value.
  template <class T>
  static Value CreateTensor(const OrtMemoryInfo* info, T* data, size_t count, const int64_t* shape,
                            size_t shape_len) {
    return CreateTensor(info, data, count * sizeof(T), shape, shape_len, TypeToTensorType<T>::type);
  }
  static Value CreateTensor(const OrtMemoryInfo* info, void* data, size_t bytes,
                            const int64_t* shape, size_t shape_len,
                            ONNXTensorElementDataType type) {
    const OrtMemoryInfo& place = detail::checked(info, "CreateTensor");
    if (!ConstMemoryInfo::on_host(place))
      detail::refuse("[CreateTensor] tensors must be in memory of the host, but found '" +
                     place.name + "'");
    return detail::translated([&] {
      return Value(ortmodule::inference::Value::borrowed(detail::element_type(type),
                                                         {shape, shape + shape_len}, data, bytes));
    });
  }
  /// A tensor in memory of an allocator, which must live as long as the value.
  template <class T>
  static Value CreateTensor(OrtAllocator* allocator, const int64_t* shape, size_t shape_len) {
    return CreateTensor(allocator, shape, shape_len, TypeToTensorType<T>::type);
  }
  static Value CreateTensor(OrtAllocator* allocator, const int64_t* shape, size_t shape_len,
                            ONNXTensorElementDataType type) {
    detail::checked(allocator, "CreateTensor");
    return detail::translated([&] {
      using Tensor = ortmodule::inference::Value;
      const std::vector<int64_t> sizes(shape, shape + shape_len);
      if (allocator == detail::host_allocator())
        return Value(Tensor::tensor(detail::element_type(type), sizes));
      const size_t bytes = Tensor::byte_count_of(detail::element_type(type), sizes);
      std::shared_ptr<void> memory(allocator->Alloc(allocator, bytes),
                                   detail::AllocatedFree(allocator));
      return Value(
          Tensor::borrowed(detail::element_type(type), sizes, memory.get(), bytes, memory));
    });
  }
  /// A sequence of tensors. They share their memory with it.
  static Value CreateSequence(const std::vector<Value>& values) {
    return detail::translated([&] {
      std::vector<ortmodule::inference::Value> elements;
      for (const Value& element : values) elements.push_back(element.value());
      return Value(ortmodule::inference::Value::sequence(std::move(elements)));
    });
  }
};

template <class Holder>
Value detail::ConstValueImpl<Holder>::GetValue(int index, OrtAllocator*) const {
  return translated([&] {
    const auto& elements = value().elements();
    if (index < 0 || static_cast<size_t>(index) >= elements.size())
      refuse("[GetValue] the index must be below " + std::to_string(elements.size()) +
             ", but found " + std::to_string(index));
    return Value(elements[static_cast<size_t>(index)]);
  });
}

/// The plain type that older programs name for what another object owns.
template <class T>
using Unowned = T;

}  // namespace Ort
