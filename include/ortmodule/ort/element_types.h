// Element types of C++ types, and numbers of 16 bits.
#pragma once

#include <ortmodule/ort/exception.h>

#include <cmath>
#include <cstdint>

namespace Ort {
namespace detail {

/// What both forms of 16 bits share: `Number` converts from and to float.
template <class Derived, class Number, uint16_t exponent>
struct Half {
  uint16_t val = 0;

  constexpr Half() = default;
  explicit Half(float value) : val(Number(value).bits) {}
  static Derived FromBits(uint16_t bits) {
    Derived number;
    number.val = bits;
    return number;
  }

  float ToFloat() const { return static_cast<float>(Number::from_bits(val)); }
  explicit operator float() const { return ToFloat(); }
  bool IsNegative() const { return (val & 0x8000u) != 0; }
  bool IsNaN() const { return std::isnan(ToFloat()); }
  bool IsFinite() const { return std::isfinite(ToFloat()); }
  bool IsInfinity() const { return std::isinf(ToFloat()); }
  bool IsPositiveInfinity() const { return IsInfinity() && !IsNegative(); }
  bool IsNegativeInfinity() const { return IsInfinity() && IsNegative(); }
  bool IsNaNOrZero() const { return IsNaN() || (val & 0x7fffu) == 0; }
  bool IsNormal() const { return (val & exponent) != 0 && (val & exponent) != exponent; }
  bool IsSubnormal() const { return (val & exponent) == 0 && (val & 0x7fffu) != 0; }
  Derived Abs() const { return FromBits(static_cast<uint16_t>(val & 0x7fffu)); }
  Derived Negate() const {
    return IsNaN() ? FromBits(val) : FromBits(static_cast<uint16_t>(val ^ 0x8000u));
  }
  static bool AreZero(const Derived& a, const Derived& b) {
    return ((a.val | b.val) & 0x7fffu) == 0;
  }

  friend bool operator==(const Derived& a, const Derived& b) { return a.ToFloat() == b.ToFloat(); }
  friend bool operator!=(const Derived& a, const Derived& b) { return !(a == b); }
  friend bool operator<(const Derived& a, const Derived& b) { return a.ToFloat() < b.ToFloat(); }
};

}  // namespace detail

/// An IEEE half-precision number.
struct Float16_t : detail::Half<Float16_t, ortmodule::inference::Float16, 0x7c00> {
  using Half::Half;
};

/// The upper half of a float.
struct BFloat16_t : detail::Half<BFloat16_t, ortmodule::inference::BFloat16, 0x7f80> {
  using Half::Half;
};

namespace detail {

/// A number of 8 bits, of which only the bits are known here.
template <int form>
struct Float8 {
  uint8_t value = 0;

  constexpr Float8() noexcept = default;
  constexpr Float8(uint8_t bits) noexcept : value(bits) {}
  constexpr operator uint8_t() const noexcept { return value; }
  constexpr bool operator==(const Float8& other) const noexcept { return value == other.value; }
  constexpr bool operator!=(const Float8& other) const noexcept { return value != other.value; }
};

}  // namespace detail

using Float8E4M3FN_t = detail::Float8<ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN>;
using Float8E4M3FNUZ_t = detail::Float8<ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ>;
using Float8E5M2_t = detail::Float8<ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2>;
using Float8E5M2FNUZ_t = detail::Float8<ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ>;

static_assert(sizeof(Float8E5M2_t) == 1, "arrays of them are tensors");
static_assert(sizeof(Float16_t) == 2 && sizeof(BFloat16_t) == 2, "arrays of them are tensors");

/// The element type of a C++ type: TypeToTensorType<float>::type.
template <class T>
struct TypeToTensorType {
  static_assert(ortmodule::inference::element_type_of<T> !=
                    ortmodule::inference::ElementType::Undefined,
                "tensors have no elements of this type");
  static constexpr auto type =
      static_cast<ONNXTensorElementDataType>(ortmodule::inference::element_type_of<T>);
};
template <>
struct TypeToTensorType<Float16_t> {
  static constexpr ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
};
template <>
struct TypeToTensorType<BFloat16_t> {
  static constexpr ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
};
template <int form>
struct TypeToTensorType<detail::Float8<form>> {
  static constexpr auto type = static_cast<ONNXTensorElementDataType>(form);
};
template <>
struct TypeToTensorType<std::string> {
  static constexpr ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
};

namespace detail {

inline ortmodule::inference::ElementType element_type(ONNXTensorElementDataType type) {
  return static_cast<ortmodule::inference::ElementType>(type);
}

}  // namespace detail
}  // namespace Ort
