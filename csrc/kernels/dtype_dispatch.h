// From a dtype at run time to a type at compile time.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/stored_element.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// f.template operator()<T>() for the floating type T of `dtype`.
template <class F>
decltype(auto) dispatch_float(DType dtype, const F& f) {
  switch (dtype) {
    case DType::Float32: return f.template operator()<float>();
    case DType::Float64: return f.template operator()<double>();
    case DType::Float16: return f.template operator()<Float16>();
    case DType::BFloat16: return f.template operator()<BFloat16>();
    default: throw InternalError("a kernel of floats was given another type");
  }
}

/// The same for every real type.
template <class F>
decltype(auto) dispatch_real(DType dtype, const F& f) {
  switch (dtype) {
    case DType::Int64: return f.template operator()<int64_t>();
    case DType::Int32: return f.template operator()<int32_t>();
    case DType::Int16: return f.template operator()<int16_t>();
    case DType::Int8: return f.template operator()<int8_t>();
    case DType::UInt8: return f.template operator()<uint8_t>();
    case DType::Bool: return f.template operator()<bool>();
    default: return dispatch_float(dtype, f);
  }
}

/// The same for every real type and unsigned integers.
template <class F>
decltype(auto) dispatch_number(DType dtype, const F& f) {
  switch (dtype) {
    case DType::UInt16: return f.template operator()<uint16_t>();
    case DType::UInt32: return f.template operator()<uint32_t>();
    case DType::UInt64: return f.template operator()<uint64_t>();
    default: return dispatch_real(dtype, f);
  }
}

/// The type of 1, 2, 4, 8 or 16 bytes, for kernels that only move elements.
struct Bytes16 {
  uint64_t half[2];
};
template <class F>
decltype(auto) dispatch_width(size_t bytes, const F& f) {
  switch (bytes) {
    case 1: return f.template operator()<uint8_t>();
    case 2: return f.template operator()<uint16_t>();
    case 4: return f.template operator()<uint32_t>();
    case 8: return f.template operator()<uint64_t>();
    case 16: return f.template operator()<Bytes16>();
    default: throw InternalError("no element has this many bytes");
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
