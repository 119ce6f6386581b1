#include "onnx/onnx_element.h"

namespace ortmodule {
namespace {

using Field = OnnxTypedField;

constexpr OnnxElement kElements[] = {
    {1, "float32", DType::Float32, 32, Field::Floats},
    {2, "uint8", DType::UInt8, 8},
    {3, "int8", DType::Int8, 8},
    {4, "uint16", DType::Undefined, 16},
    {5, "int16", DType::Int16, 16},
    {6, "int32", DType::Int32, 32},
    {7, "int64", DType::Int64, 64, Field::Int64s},
    {8, "string", DType::Undefined, 0, Field::Strings},
    {9, "bool", DType::Bool, 8},
    {10, "float16", DType::Float16, 16},
    {11, "float64", DType::Float64, 64, Field::Doubles},
    {12, "uint32", DType::Undefined, 32, Field::UInt64s},
    {13, "uint64", DType::Undefined, 64, Field::UInt64s},
    {14, "complex64", DType::Complex64, 64, Field::Floats},
    {15, "complex128", DType::Complex128, 128, Field::Doubles},
    {16, "bfloat16", DType::BFloat16, 16},
    {17, "float8e4m3fn", DType::Undefined, 8},
    {18, "float8e4m3fnuz", DType::Undefined, 8},
    {19, "float8e5m2", DType::Undefined, 8},
    {20, "float8e5m2fnuz", DType::Undefined, 8},
    {21, "uint4", DType::Undefined, 4},
    {22, "int4", DType::Undefined, 4},
    {23, "float4e2m1", DType::Undefined, 4},
    {24, "float8e8m0", DType::Undefined, 8},
    {25, "uint2", DType::Undefined, 2},
    {26, "int2", DType::Undefined, 2},
    {27, "float6e2m3", DType::Undefined, 6},
    {28, "float6e3m2", DType::Undefined, 6},
};

}  // namespace

const OnnxElement* find_onnx_element(int number) {
  for (const OnnxElement& element : kElements)
    if (element.number == number) return &element;
  return nullptr;
}

int onnx_number_of(DType dtype) {
  if (dtype == DType::Undefined) return 0;
  for (const OnnxElement& element : kElements)
    if (element.dtype == dtype) return element.number;
  return 0;
}

DType dtype_of_onnx(int number) {
  const OnnxElement* element = find_onnx_element(number);
  return element ? element->dtype : DType::Undefined;
}

}  // namespace ortmodule
