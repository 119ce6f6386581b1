// Element types of tensors and what promotion does with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ortmodule {

enum class DType : uint8_t {
  Undefined,
  Float32,
  Float64,
  Float16,
  BFloat16,
  Int64,
  Int32,
  Int16,
  Int8,
  UInt8,
  Bool,
  Complex64,
  Complex128,
};

/// Bytes of one element; 0 for Undefined.
size_t size_of(DType dtype);

/// Short name of the text notation: "f32", "bf16", "i64", "bool" ...
std::string_view name_of(DType dtype);

/// PyTorch's name: "float32", "bfloat16", "int64" ...
std::string_view torch_name_of(DType dtype);

/// Reads either spelling. Throws Error on an unknown name.
DType parse_dtype(std::string_view name);

/// float16, bfloat16, float32 or float64.
bool is_floating(DType dtype);

/// complex64 or complex128.
bool is_complex(DType dtype);

/// Signed or unsigned integers, bool not included.
bool is_integral(DType dtype);

/// Floating and complex types carry gradients.
inline bool is_differentiable(DType dtype) { return is_floating(dtype) || is_complex(dtype); }

/// The type in which an element of `dtype` is computed: float32 for the 16-bit floats, itself else.
DType compute_dtype(DType dtype);

/// PyTorch's result type of two tensors of equal rank category (bool < ints < floats).
DType promote(DType a, DType b);

}  // namespace ortmodule
