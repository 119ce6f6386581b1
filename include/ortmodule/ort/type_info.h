// Types and sizes of inputs, outputs and values. The objects own what they describe, so that one
// made from a temporary stays valid.
#pragma once

#include <ortmodule/ort/element_types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace Ort {

/// Element type and sizes of a tensor. A size that changes is -1.
class TensorTypeAndShapeInfo {
 public:
  TensorTypeAndShapeInfo() = default;
  explicit TensorTypeAndShapeInfo(std::nullptr_t) {}
  TensorTypeAndShapeInfo(ONNXTensorElementDataType type, std::vector<int64_t> sizes,
                         std::vector<std::string> names = {}, bool has_shape = true)
      : type_(type), sizes_(std::move(sizes)), names_(std::move(names)), has_shape_(has_shape) {
    names_.resize(sizes_.size());
  }

  ONNXTensorElementDataType GetElementType() const { return type_; }
  /// The product of the sizes; throws if one of them changes.
  size_t GetElementCount() const {
    size_t count = 1;
    for (int64_t size : sizes_) {
      if (size < 0)
        detail::refuse("[GetElementCount] the number of elements is not known", ORT_FAIL);
      count *= static_cast<size_t>(size);
    }
    return count;
  }
  size_t GetDimensionsCount() const { return sizes_.size(); }
  void GetDimensions(int64_t* values, size_t count) const {
    for (size_t i = 0; i < count && i < sizes_.size(); ++i) values[i] = sizes_[i];
  }
  /// Names of sizes, "" for a size without one; valid as long as this object.
  void GetSymbolicDimensions(const char** values, size_t count) const {
    for (size_t i = 0; i < count && i < names_.size(); ++i) values[i] = names_[i].c_str();
  }
  std::vector<const char*> GetSymbolicDimensions() const {
    std::vector<const char*> names;
    for (const std::string& name : names_) names.push_back(name.c_str());
    return names;
  }
  std::vector<int64_t> GetShape() const { return sizes_; }
  /// Whether the model says how many sizes there are.
  bool HasShape() const { return has_shape_; }
  TensorTypeAndShapeInfo GetConst() const { return *this; }

 private:
  ONNXTensorElementDataType type_ = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<int64_t> sizes_;
  std::vector<std::string> names_;
  bool has_shape_ = false;
};

using ConstTensorTypeAndShapeInfo = TensorTypeAndShapeInfo;

class SequenceTypeInfo;
class OptionalTypeInfo;

/// The type of an input, an output or a value.
class TypeInfo {
 public:
  TypeInfo() = default;
  explicit TypeInfo(std::nullptr_t) {}
  explicit TypeInfo(const ortmodule::inference::TensorInfo& info) : optional_(info.optional) {
    using Kind = ortmodule::inference::TensorInfo::Kind;
    type_ = info.kind == Kind::Tensor     ? ONNX_TYPE_TENSOR
            : info.kind == Kind::Sequence ? ONNX_TYPE_SEQUENCE
                                          : ONNX_TYPE_UNKNOWN;
    tensor_ = TensorTypeAndShapeInfo(static_cast<ONNXTensorElementDataType>(info.type), info.sizes,
                                     info.size_names, info.has_rank);
  }
  TypeInfo(ONNXType type, TensorTypeAndShapeInfo tensor)
      : type_(type), tensor_(std::move(tensor)) {}

  ONNXType GetONNXType() const { return optional_ ? ONNX_TYPE_OPTIONAL : type_; }
  /// Of a tensor; throws for another type.
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const {
    expect(ONNX_TYPE_TENSOR, "a tensor");
    return tensor_;
  }
  SequenceTypeInfo GetSequenceTypeInfo() const;
  OptionalTypeInfo GetOptionalTypeInfo() const;
  TypeInfo GetConst() const { return *this; }

 private:
  void expect(ONNXType wanted, const char* what) const {
    if (GetONNXType() != wanted)
      detail::refuse(std::string("[TypeInfo] the value must be ") + what + ", but found type " +
                     std::to_string(GetONNXType()));
  }

  ONNXType type_ = ONNX_TYPE_UNKNOWN;
  bool optional_ = false;
  TensorTypeAndShapeInfo tensor_;
};

using ConstTypeInfo = TypeInfo;

/// The type of a sequence.
class SequenceTypeInfo {
 public:
  explicit SequenceTypeInfo(TypeInfo element) : element_(std::move(element)) {}
  TypeInfo GetSequenceElementType() const { return element_; }

 private:
  TypeInfo element_;
};
using ConstSequenceTypeInfo = SequenceTypeInfo;

/// The type of an optional.
class OptionalTypeInfo {
 public:
  explicit OptionalTypeInfo(TypeInfo element) : element_(std::move(element)) {}
  TypeInfo GetOptionalElementType() const { return element_; }

 private:
  TypeInfo element_;
};
using ConstOptionalTypeInfo = OptionalTypeInfo;

/// An input or output: its name and type.
class ValueInfo {
 public:
  ValueInfo(std::string name, Ort::TypeInfo type)
      : name_(std::move(name)), type_(std::move(type)) {}
  std::string GetName() const { return name_; }
  Ort::TypeInfo TypeInfo() const { return type_; }

 private:
  std::string name_;
  Ort::TypeInfo type_;
};
using ConstValueInfo = ValueInfo;

inline SequenceTypeInfo TypeInfo::GetSequenceTypeInfo() const {
  expect(ONNX_TYPE_SEQUENCE, "a sequence");
  return SequenceTypeInfo(TypeInfo(ONNX_TYPE_TENSOR, tensor_));
}

inline OptionalTypeInfo TypeInfo::GetOptionalTypeInfo() const {
  expect(ONNX_TYPE_OPTIONAL, "an optional");
  return OptionalTypeInfo(TypeInfo(type_, tensor_));
}

}  // namespace Ort
