// What the formulas use of the C++ standard library, for NVRTC, which has none: this text stands in
// for <cmath>, <limits> and the others that rtc_headers.cpp lists, and for <cuda_runtime.h>.
#pragma once

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;  // as on Linux, so that rows of int64_t are the host's
using uint64_t = unsigned long;
using uintptr_t = unsigned long;

// g++'s and nvcc's builtin functions.
#define __builtin_fmaf __fmaf_rn
#define __builtin_fma __fma_rn
constexpr float __builtin_inff() { return __builtin_bit_cast(float, 0x7f800000); }
constexpr double __builtin_inf() { return __builtin_bit_cast(double, 0x7ff0000000000000); }
constexpr float __builtin_nanf(const char*) { return __builtin_bit_cast(float, 0x7fc00000); }

namespace std {

using ::size_t;

// --- <type_traits> -------------------------------------------------------------------------------
template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;

template <class T>
inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T>
inline constexpr bool is_integral_v =
    is_same_v<T, bool> || is_same_v<T, int8_t> || is_same_v<T, uint8_t> || is_same_v<T, int16_t> ||
    is_same_v<T, uint16_t> || is_same_v<T, int32_t> || is_same_v<T, uint32_t> ||
    is_same_v<T, int64_t> || is_same_v<T, uint64_t>;

template <bool kFirst, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool kFirst, class A, class B>
using conditional_t = typename conditional<kFirst, A, B>::type;

template <class T, class... Args>
inline constexpr bool is_constructible_v = __is_constructible(T, Args...);

// --- <limits> ------------------------------------------------------------------------------------
template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr float infinity() { return __builtin_inff(); }
};
template <>
struct numeric_limits<double> {
  static constexpr double infinity() { return __builtin_inf(); }
};
template <>
struct numeric_limits<int64_t> {
  static constexpr int64_t max() { return 0x7fffffffffffffff; }
  static constexpr int64_t min() { return -max() - 1; }
};

// --- <functional> --------------------------------------------------------------------------------
template <class T>
struct equal_to {
  constexpr bool operator()(const T& a, const T& b) const { return a == b; }
};
template <class T>
struct not_equal_to {
  constexpr bool operator()(const T& a, const T& b) const { return a != b; }
};
template <class T>
struct less {
  constexpr bool operator()(const T& a, const T& b) const { return a < b; }
};
template <class T>
struct less_equal {
  constexpr bool operator()(const T& a, const T& b) const { return a <= b; }
};
template <class T>
struct greater {
  constexpr bool operator()(const T& a, const T& b) const { return a > b; }
};
template <class T>
struct greater_equal {
  constexpr bool operator()(const T& a, const T& b) const { return a >= b; }
};

// --- <string>, <string_view>: declared by headers, used by none of their code that is compiled ---
class string;
class string_view;

// --- <cmath>: NVRTC's own functions --------------------------------------------------------------
using ::acos;
using ::asin;
using ::atan;
using ::atan2;
using ::ceil;
using ::copysign;
using ::cos;
using ::cosh;
using ::erf;
using ::erfc;
using ::exp;
using ::exp2;
using ::expm1;
using ::fabs;
using ::floor;
using ::fmod;
using ::log;
using ::log1p;
using ::nearbyint;
using ::pow;
using ::sin;
using ::sinh;
using ::sqrt;
using ::tan;
using ::tanh;
using ::trunc;

}  // namespace std
