// Elements of any real type as numbers that compare like them, and numbers as elements.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/element_value.h"
#include "base/error.h"
#include "base/narrow_number.h"
#include "inference/host_tensor.h"

namespace ortmodule {

/// f(read) with read(i): element i of row-major x as int64_t, uint64_t, float or double.
template <class F>
void with_reader(const HostTensorView& x, const F& f) {
  const auto as = [&]<class T>(T) {
    const T* data = static_cast<const T*>(x.data);
    using Number =
        std::conditional_t<std::is_floating_point_v<T>, T,
                           std::conditional_t<std::is_same_v<T, uint64_t>, uint64_t, int64_t>>;
    f([data](int64_t i) { return static_cast<Number>(data[i]); });
  };
  const DType dtype = x.dtype;
  switch (dtype) {
    case DType::Float32: return as(float());
    case DType::Float64: return as(double());
    case DType::Int64: return as(int64_t());
    case DType::Int32: return as(int32_t());
    case DType::Int16: return as(int16_t());
    case DType::Int8: return as(int8_t());
    case DType::UInt8:
    case DType::Bool: return as(uint8_t());
    case DType::UInt16: return as(uint16_t());
    case DType::UInt32: return as(uint32_t());
    case DType::UInt64: return as(uint64_t());
    case DType::Float16:
    case DType::BFloat16: {
      const auto* bits = static_cast<const uint16_t*>(x.data);
      return f([bits, dtype](int64_t i) { return float_of_bits(bits[i], dtype); });
    }
    default: break;
  }
  ORTM_CHECK(is_narrow_float(dtype) || is_narrow_integer(dtype),
             "[run] elements must be real numbers, but found ", name_of(dtype));
  const auto* bytes = static_cast<const uint8_t*>(x.data);
  f([bytes, dtype](int64_t i) { return narrow_value(bytes[i], dtype); });
}

/// Stores a real number as a float of that type.
inline void store_real(void* to, DType dtype, double value) {
  const auto single = static_cast<float>(value);
  const uint16_t half = dtype == DType::Float16 ? float16_bits(single) : bfloat16_bits(single);
  if (dtype == DType::Float64)
    std::memcpy(to, &value, sizeof value);
  else if (dtype == DType::Float32)
    std::memcpy(to, &single, sizeof single);
  else
    std::memcpy(to, &half, sizeof half);
}

}  // namespace ortmodule
