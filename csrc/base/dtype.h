// Element types of tensors, and type promotion.
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

/// Short name in the text notation: "f32", "bf16", "i64", "bool" ...
std::string_view name_of(DType dtype);

/// PyTorch's name: "float32", "bfloat16", "int64" ...
std::string_view torch_name_of(DType dtype);

/// Parses either name. Throws Error if it is unknown.
DType parse_dtype(std::string_view name);

/// float16, bfloat16, float32 or float64.
bool is_floating(DType dtype);

/// complex64 or complex128.
bool is_complex(DType dtype);

/// Signed or unsigned integers, without bool.
bool is_integral(DType dtype);

/// Floating and complex types carry gradients.
inline bool is_differentiable(DType dtype) { return is_floating(dtype) || is_complex(dtype); }

/// The type in which kernels compute `dtype`: float32 for 16-bit floats, otherwise itself.
DType compute_dtype(DType dtype);

/// torch.promote_types: the result type of two tensors with dims, or of two without.
DType promote(DType a, DType b);

}  // namespace ortmodule
