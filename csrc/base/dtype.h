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
  // Of inference sessions only.
  UInt16,
  UInt32,
  UInt64,
  Float8E4M3FN,
  Float8E4M3FNUZ,
  Float8E5M2,
  Float8E5M2FNUZ,
  Float8E8M0,
  Float4E2M1,
  Int4,
  UInt4,
  Int2,
  UInt2,
};

/// Bytes of one element in memory; 0 for Undefined. Types of 2 and 4 bits take a byte.
size_t size_of(DType dtype);

/// Short name in the text notation: "f32", "bf16", "i64", "bool" ...
std::string_view name_of(DType dtype);

/// PyTorch's name: "float32", "bfloat16", "int64" ...; the short one of types of sessions only.
std::string_view torch_name_of(DType dtype);

/// Parses either name. Throws Error if it is unknown.
DType parse_dtype(std::string_view name);

/// float16, bfloat16, float32 or float64.
bool is_floating(DType dtype);

/// complex64 or complex128.
bool is_complex(DType dtype);

/// Signed or unsigned integers of whole bytes, without bool.
bool is_integral(DType dtype);

/// uint16, uint32 and uint64.
bool is_wide_unsigned(DType dtype);

/// Floats of 4 and 8 bits, which are cast to and from float32.
bool is_narrow_float(DType dtype);

/// Integers of 2 and 4 bits, which are int8 or uint8 in memory (`byte_dtype`).
bool is_narrow_integer(DType dtype);

/// The type of 8 bits as which a narrow integer lies in memory.
DType byte_dtype(DType narrow_integer);

/// Bits of an element in a file: 2 or 4, or those of its bytes in memory.
int packed_bits(DType dtype);

/// Floating and complex types carry gradients.
inline bool is_differentiable(DType dtype) { return is_floating(dtype) || is_complex(dtype); }

/// The type in which kernels compute `dtype`: float32 for 16-bit floats, otherwise itself.
DType compute_dtype(DType dtype);

/// torch.promote_types: the result type of two tensors with dims, or of two without.
DType promote(DType a, DType b);

}  // namespace ortmodule
