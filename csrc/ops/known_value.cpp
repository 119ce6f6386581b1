#include "ops/known_value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/layout.h"

namespace ortmodule {
namespace {

template <class T>
T element_at(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + static_cast<size_t>(i) * sizeof(T),
              sizeof(T));
  return value;
}

// The number of a 16-bit float.
double half_value(uint16_t bits, DType dtype) {
  if (dtype == DType::BFloat16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    return element_at<float>(&wide, 0);
  }
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

}  // namespace

int64_t saturated(int64_t size) {
  constexpr int64_t kMost = int64_t{1} << 40;
  return std::clamp(size, -kMost, kMost);
}

bool has_known_content(DType dtype) {
  return dtype == DType::Bool || (is_integral(dtype) && !is_wide_unsigned(dtype));
}

int64_t integer_element(const void* data, int64_t i, DType dtype) {
  switch (dtype) {
    case DType::Int64: return element_at<int64_t>(data, i);
    case DType::Int32: return element_at<int32_t>(data, i);
    case DType::Int16: return element_at<int16_t>(data, i);
    case DType::Int8: return element_at<int8_t>(data, i);
    case DType::UInt8: return element_at<uint8_t>(data, i);
    case DType::Bool: return element_at<uint8_t>(data, i) != 0;
    default: throw InternalError("an element that is no integer");
  }
}

std::optional<KnownValue> known_content(const OnnxTensor& tensor) {
  const int64_t count = element_count(tensor.dims);
  const bool real = is_floating(tensor.dtype);
  if (count > KnownValue::kMostElements) return std::nullopt;
  if (!real && !has_known_content(tensor.dtype)) return std::nullopt;
  KnownValue value{tensor.dtype, tensor.dims, {}};
  const char* data = tensor.bytes.data();
  for (int64_t i = 0; i < count; ++i) {
    if (tensor.dtype == DType::Float32)
      value.elements.push_back(KnownNumber::real(element_at<float>(data, i)));
    else if (tensor.dtype == DType::Float64)
      value.elements.push_back(KnownNumber::real(element_at<double>(data, i)));
    else if (real)
      value.elements.push_back(
          KnownNumber::real(half_value(element_at<uint16_t>(data, i), tensor.dtype)));
    else
      value.elements.emplace_back(integer_element(data, i, tensor.dtype));
  }
  return value;
}

std::optional<std::pair<int64_t, int64_t>> integer_bounds(const OnnxTensor& tensor) {
  const int64_t count = element_count(tensor.dims);
  if (!is_integral(tensor.dtype) || !has_known_content(tensor.dtype) || tensor.source ||
      count == 0 || count > KnownValue::kMostElements)
    return std::nullopt;
  std::pair<int64_t, int64_t> bounds{INT64_MAX, INT64_MIN};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t element = integer_element(tensor.bytes.data(), i, tensor.dtype);
    bounds = {std::min(bounds.first, element), std::max(bounds.second, element)};
  }
  return bounds;
}

}  // namespace ortmodule
