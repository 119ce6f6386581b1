#include "onnx/onnx_types.h"

#include <array>

#include "base/error.h"

namespace ortmodule {
namespace {

using Field = OnnxTypedField;

// By number; the first is no type.
constexpr std::array<OnnxElement, 29> kElements = {{
    {"undefined"},
    {"float", 32, DType::Float32, Field::Floats},
    {"uint8", 8, DType::UInt8},
    {"int8", 8, DType::Int8},
    {"uint16", 16, DType::UInt16},
    {"int16", 16, DType::Int16},
    {"int32", 32, DType::Int32},
    {"int64", 64, DType::Int64, Field::Int64s},
    {"string", 0, DType::Undefined, Field::Strings},
    {"bool", 8, DType::Bool},
    {"float16", 16, DType::Float16},
    {"double", 64, DType::Float64, Field::Doubles},
    {"uint32", 32, DType::UInt32, Field::UInt64s},
    {"uint64", 64, DType::UInt64, Field::UInt64s},
    {"complex64", 64, DType::Complex64, Field::Floats},
    {"complex128", 128, DType::Complex128, Field::Doubles},
    {"bfloat16", 16, DType::BFloat16},
    {"float8e4m3fn", 8, DType::Float8E4M3FN},
    {"float8e4m3fnuz", 8, DType::Float8E4M3FNUZ},
    {"float8e5m2", 8, DType::Float8E5M2},
    {"float8e5m2fnuz", 8, DType::Float8E5M2FNUZ},
    {"uint4", 4, DType::UInt4},
    {"int4", 4, DType::Int4},
    {"float4e2m1", 4, DType::Float4E2M1},
    {"float8e8m0", 8, DType::Float8E8M0},
    {"uint2", 2, DType::UInt2},
    {"int2", 2, DType::Int2},
    {"float6e2m3", 6},
    {"float6e3m2", 6},
}};

}  // namespace

const OnnxElement* find_onnx_element(int64_t number) {
  if (number <= 0 || number >= static_cast<int64_t>(kElements.size())) return nullptr;
  return &kElements[static_cast<size_t>(number)];
}

DType onnx_dtype(int64_t number) {
  const OnnxElement* element = find_onnx_element(number);
  return element ? element->dtype : DType::Undefined;
}

int onnx_number(DType dtype) {
  if (dtype == DType::Undefined) return 0;
  for (size_t i = 1; i < kElements.size(); ++i)
    if (kElements[i].dtype == dtype) return static_cast<int>(i);
  return 0;
}

std::string onnx_type_name(int64_t number) {
  if (number == 0) return std::string(kElements[0].name);
  const OnnxElement* element = find_onnx_element(number);
  return element ? std::string(element->name) : str("type ", number);
}

}  // namespace ortmodule
