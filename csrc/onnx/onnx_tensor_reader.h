// Tensors of ONNX files, in all encodings.
#pragma once

#include <string_view>

#include "onnx/onnx_model.h"
#include "onnx/onnx_read_context.h"

namespace ortmodule {

/// Reads a TensorProto. Raw and external data, and floats in one packed field, are not copied. With
/// `may_be_given`, the elements are the caller's if the context has some of that name.
OnnxInitializer read_onnx_tensor(OnnxReadContext& c, std::string_view message,
                                 bool may_be_given = false);

/// Reads a SparseTensorProto as a dense tensor. Its name is that of its values.
OnnxInitializer read_onnx_sparse_tensor(OnnxReadContext& c, std::string_view message);

}  // namespace ortmodule
