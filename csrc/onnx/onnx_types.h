// ONNX's numbers of element types.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace ortmodule {

/// The element type with that number in ONNX (TensorProto.DataType); Undefined if the engine lacks
/// it.
DType onnx_dtype(int64_t number);
/// The number of an element type; 0 for Undefined.
int onnx_number(DType dtype);
/// ONNX's name of a number as onnxruntime writes it: "float", "int64", "string", "float8e4m3fn".
std::string onnx_type_name(int64_t number);

}  // namespace ortmodule
