// Element types of tensors in ONNX files, by their numbers (TensorProto.DataType). The engine lacks
// some of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace ortmodule {

/// The number of texts, which the engine has as numbers (onnx/text_table.h).
inline constexpr int kOnnxString = 8;

/// The field of a TensorProto that holds the elements when they are not raw bytes, by number.
enum class OnnxTypedField : uint8_t {
  Floats = 4,
  Int32s = 5,
  Strings = 6,
  Int64s = 7,
  Doubles = 10,
  UInt64s = 11,
};

struct OnnxElement {
  std::string_view name;
  int bits = 0;                    // of one element; 0 for strings
  DType dtype = DType::Undefined;  // Undefined: the engine lacks the type
  OnnxTypedField field = OnnxTypedField::Int32s;
};

/// The element type with that number; null if ONNX has none.
const OnnxElement* find_onnx_element(int64_t number);

/// The element type with that number in ONNX; Undefined if the engine lacks it.
DType onnx_dtype(int64_t number);
/// The number of an element type; 0 for Undefined.
int onnx_number(DType dtype);
/// ONNX's name of a number as onnxruntime writes it: "float", "int64", "string", "float8e4m3fn".
std::string onnx_type_name(int64_t number);

}  // namespace ortmodule
