#include "base/dtype.h"

#include <array>

#include "base/error.h"

namespace ortmodule {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::string_view torch_name;
  size_t bytes;
};

constexpr std::array<DTypeRow, 26> kRows{{
    {DType::Undefined, "undefined", "undefined", 0},
    {DType::Float32, "f32", "float32", 4},
    {DType::Float64, "f64", "float64", 8},
    {DType::Float16, "f16", "float16", 2},
    {DType::BFloat16, "bf16", "bfloat16", 2},
    {DType::Int64, "i64", "int64", 8},
    {DType::Int32, "i32", "int32", 4},
    {DType::Int16, "i16", "int16", 2},
    {DType::Int8, "i8", "int8", 1},
    {DType::UInt8, "u8", "uint8", 1},
    {DType::Bool, "bool", "bool", 1},
    {DType::Complex64, "c64", "complex64", 8},
    {DType::Complex128, "c128", "complex128", 16},
    {DType::UInt16, "u16", "u16", 2},
    {DType::UInt32, "u32", "u32", 4},
    {DType::UInt64, "u64", "u64", 8},
    {DType::Float8E4M3FN, "f8e4m3fn", "f8e4m3fn", 1},
    {DType::Float8E4M3FNUZ, "f8e4m3fnuz", "f8e4m3fnuz", 1},
    {DType::Float8E5M2, "f8e5m2", "f8e5m2", 1},
    {DType::Float8E5M2FNUZ, "f8e5m2fnuz", "f8e5m2fnuz", 1},
    {DType::Float8E8M0, "f8e8m0", "f8e8m0", 1},
    {DType::Float4E2M1, "f4e2m1", "f4e2m1", 1},
    {DType::Int4, "i4", "i4", 1},
    {DType::UInt4, "u4", "u4", 1},
    {DType::Int2, "i2", "i2", 1},
    {DType::UInt2, "u2", "u2", 1},
}};

const DTypeRow& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

// Order of PyTorch's promotion lattice inside one category.
int integral_rank(DType dtype) {
  switch (dtype) {
    case DType::Bool: return 0;
    case DType::UInt8: return 1;
    case DType::Int8: return 2;
    case DType::Int16: return 3;
    case DType::Int32: return 4;
    default: return 5;
  }
}

}  // namespace

size_t size_of(DType dtype) { return row(dtype).bytes; }
std::string_view name_of(DType dtype) { return row(dtype).name; }
std::string_view torch_name_of(DType dtype) { return row(dtype).torch_name; }

DType parse_dtype(std::string_view name) {
  for (const DTypeRow& r : kRows)
    if (r.name == name || r.torch_name == name) return r.dtype;
  throw Error(
      str("[dtype] the element type must be one that ortmodule_py knows, but found '", name, "'"));
}

bool is_floating(DType dtype) {
  return dtype == DType::Float32 || dtype == DType::Float64 || dtype == DType::Float16 ||
         dtype == DType::BFloat16;
}

bool is_complex(DType dtype) { return dtype == DType::Complex64 || dtype == DType::Complex128; }

bool is_integral(DType dtype) {
  return dtype == DType::Int64 || dtype == DType::Int32 || dtype == DType::Int16 ||
         dtype == DType::Int8 || dtype == DType::UInt8 || is_wide_unsigned(dtype);
}

bool is_wide_unsigned(DType dtype) {
  return dtype == DType::UInt16 || dtype == DType::UInt32 || dtype == DType::UInt64;
}

bool is_narrow_float(DType dtype) {
  return dtype >= DType::Float8E4M3FN && dtype <= DType::Float4E2M1;
}

bool is_narrow_integer(DType dtype) { return dtype >= DType::Int4 && dtype <= DType::UInt2; }

DType byte_dtype(DType narrow_integer) {
  const bool is_signed = narrow_integer == DType::Int4 || narrow_integer == DType::Int2;
  return is_signed ? DType::Int8 : DType::UInt8;
}

int packed_bits(DType dtype) {
  if (dtype == DType::Int2 || dtype == DType::UInt2) return 2;
  if (is_narrow_integer(dtype) || dtype == DType::Float4E2M1) return 4;
  return static_cast<int>(size_of(dtype)) * 8;
}

DType compute_dtype(DType dtype) {
  return dtype == DType::Float16 || dtype == DType::BFloat16 ? DType::Float32 : dtype;
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_complex(a) || is_complex(b)) {
    const bool wide = a == DType::Complex128 || b == DType::Complex128 || a == DType::Float64 ||
                      b == DType::Float64;
    return wide ? DType::Complex128 : DType::Complex64;
  }
  if (is_floating(a) && is_floating(b)) {
    if (a == DType::Float64 || b == DType::Float64) return DType::Float64;
    return DType::Float32;  // also float16 with bfloat16
  }
  if (is_floating(a)) return a;
  if (is_floating(b)) return b;
  const bool unsigned_with_int8 =
      (a == DType::UInt8 && b == DType::Int8) || (a == DType::Int8 && b == DType::UInt8);
  if (unsigned_with_int8) return DType::Int16;
  return integral_rank(a) > integral_rank(b) ? a : b;
}

}  // namespace ortmodule
