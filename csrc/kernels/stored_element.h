// From how elements are stored to how they are computed, and back.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

/// The type in which elements stored as T are computed.
template <class T>
using ComputeOf = std::conditional_t<kIsHalf<T>, float, T>;

template <class T>
ORTM_HD ComputeOf<T> computed(T x) {
  if constexpr (kIsHalf<T>) {
    return to_float(x);
  } else {
    return x;
  }
}

/// Rounds to T; integers wrap around.
template <class T, class C>
ORTM_HD T stored(C x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
