// Conversions between computation types and rounding to narrower types, for the CPU and CUDA
// pointwise groups.
#pragma once

#include "kernels/stored_element.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace formulas {

/// Cast with PyTorch's rules: towards zero to integers, != 0 to bool.
template <class To>
struct Convert {
  template <class From>
  ORTM_HD To operator()(From x) const {
    if constexpr (std::is_same_v<To, bool>) {
      return x != From(0);
    } else if constexpr (std::is_same_v<To, uint64_t> && std::is_floating_point_v<From>) {
      // A negative number wraps around.
      return x < From(0) ? static_cast<To>(static_cast<int64_t>(x)) : static_cast<To>(x);
    } else {
      return static_cast<To>(x);
    }
  }
};

/// What `Stored` can hold of x, kept in the computation type.
template <class Stored>
struct RoundTo {
  template <class T>
  ORTM_HD T operator()(T x) const {
    return static_cast<T>(computed(stored<Stored>(x)));
  }
};

/// What a float is as a byte, again as a float.
template <class Byte>
struct ThroughByte {
  ORTM_HD float operator()(float x) const {
    return static_cast<float>(static_cast<Byte>(Convert<int32_t>()(x)));
  }
};

}  // namespace formulas
}  // namespace ORTM_ISA
}  // namespace ortmodule
