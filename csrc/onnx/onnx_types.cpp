#include "onnx/onnx_types.h"

#include <array>
#include <string_view>

#include "base/error.h"

namespace ortmodule {
namespace {

struct ElementType {
  std::string_view name;
  DType dtype = DType::Undefined;
};

// By number in TensorProto.DataType.
constexpr std::array<ElementType, 27> kTypes = {{
    {"undefined"},
    {"float", DType::Float32},
    {"uint8", DType::UInt8},
    {"int8", DType::Int8},
    {"uint16"},
    {"int16", DType::Int16},
    {"int32", DType::Int32},
    {"int64", DType::Int64},
    {"string"},
    {"bool", DType::Bool},
    {"float16", DType::Float16},
    {"double", DType::Float64},
    {"uint32"},
    {"uint64"},
    {"complex64", DType::Complex64},
    {"complex128", DType::Complex128},
    {"bfloat16", DType::BFloat16},
    {"float8e4m3fn"},
    {"float8e4m3fnuz"},
    {"float8e5m2"},
    {"float8e5m2fnuz"},
    {"uint4"},
    {"int4"},
    {"float4e2m1"},
    {"float8e8m0"},
    {"uint2"},
    {"int2"},
}};

const ElementType* find(int64_t number) {
  if (number < 0 || number >= static_cast<int64_t>(kTypes.size())) return nullptr;
  return &kTypes[static_cast<size_t>(number)];
}

}  // namespace

DType onnx_dtype(int64_t number) {
  const ElementType* type = find(number);
  return type ? type->dtype : DType::Undefined;
}

int onnx_number(DType dtype) {
  if (dtype == DType::Undefined) return 0;
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].dtype == dtype) return static_cast<int>(i);
  return 0;
}

std::string onnx_type_name(int64_t number) {
  const ElementType* type = find(number);
  return type ? std::string(type->name) : str("type ", number);
}

}  // namespace ortmodule
