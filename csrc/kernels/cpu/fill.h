// Filling tensors with one value, given as a double.
#pragma once

#include "base/narrow_number.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Elements [begin, end) of contiguous memory become `value`, rounded to the type.
inline void fill_range(const TensorView& view, int64_t begin, int64_t end, double value) {
  if (is_complex(view.dtype)) {  // only ever zero
    std::fill(view.as<char>() + begin * static_cast<int64_t>(size_of(view.dtype)),
              view.as<char>() + end * static_cast<int64_t>(size_of(view.dtype)), 0);
    return;
  }
  if (is_narrow_float(view.dtype) || is_narrow_integer(view.dtype)) {
    const auto byte = static_cast<uint8_t>(narrow_bits(static_cast<float>(value), view.dtype));
    std::fill(view.as<uint8_t>() + begin, view.as<uint8_t>() + end, byte);
    return;
  }
  dispatch_number(view.dtype, [&]<class T> {
    T element;
    if constexpr (std::is_same_v<T, bool>) {
      element = value != 0;
    } else if constexpr (std::is_integral_v<T>) {
      element = value < 0 ? static_cast<T>(static_cast<int64_t>(value)) : static_cast<T>(value);
    } else {
      element = stored<T>(value);
    }
    std::fill(view.as<T>() + begin, view.as<T>() + end, element);
  });
}

inline void fill_all(const KernelContext& context, const TensorView& view, double value) {
  parallel_ranges(context, view.element_count(), 65536,
                  [&](int64_t begin, int64_t end) { fill_range(view, begin, end, value); });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
