// Element types of tensors in ONNX files, also those that the engine lacks.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace ortmodule {

/// The field of a TensorProto that holds elements of a type when they are not raw bytes, by number.
enum class OnnxTypedField : uint8_t {
  Floats = 4,
  Int32s = 5,
  Strings = 6,
  Int64s = 7,
  Doubles = 10,
  UInt64s = 11,
};

struct OnnxElement {
  int number = 0;  // TensorProto.DataType
  std::string_view name;
  DType dtype = DType::Undefined;  // Undefined: the engine lacks the type
  int bits = 0;                    // of one element; 0 for strings
  OnnxTypedField field = OnnxTypedField::Int32s;
};

/// The type of that number in ONNX; null if there is none.
const OnnxElement* find_onnx_element(int number);

/// The number of `dtype` in ONNX; 0 for Undefined.
int onnx_number_of(DType dtype);

/// The type of that number in ONNX; Undefined if the engine lacks it.
DType dtype_of_onnx(int number);

}  // namespace ortmodule
