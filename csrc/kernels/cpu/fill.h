// Filling tensors with one value, given as a double.
#pragma once

#include "base/narrow_number.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// body(elements, element): those of `view`, which are real, and `value` rounded to their type.
template <class Body>
void with_element(const TensorView& view, double value, const Body& body) {
  if (is_narrow_float(view.dtype) || is_narrow_integer(view.dtype))
    return body(view.as<uint8_t>(),
                static_cast<uint8_t>(narrow_bits(static_cast<float>(value), view.dtype)));
  dispatch_number(view.dtype, [&]<class T> {
    T element;
    if constexpr (std::is_same_v<T, bool>) {
      element = value != 0;
    } else if constexpr (std::is_integral_v<T>) {
      element = value < 0 ? static_cast<T>(static_cast<int64_t>(value)) : static_cast<T>(value);
    } else {
      element = stored<T>(value);
    }
    body(view.as<T>(), element);
  });
}

/// fill(begin, end) for ranges of contiguous memory that `visit(fill)` names, which become `value`,
/// rounded to the type.
template <class Visit>
void fill_ranges(const TensorView& view, double value, const Visit& visit) {
  if (is_complex(view.dtype)) {  // only ever zero
    const auto bytes = static_cast<int64_t>(size_of(view.dtype));
    return visit([&](int64_t begin, int64_t end) {
      std::fill(view.as<char>() + begin * bytes, view.as<char>() + end * bytes, 0);
    });
  }
  with_element(view, value, [&](auto* elements, auto element) {
    visit(
        [=](int64_t begin, int64_t end) { std::fill(elements + begin, elements + end, element); });
  });
}

/// Elements [begin, end) of contiguous memory become `value`, rounded to the type.
inline void fill_range(const TensorView& view, int64_t begin, int64_t end, double value) {
  fill_ranges(view, value, [&](const auto& fill) { fill(begin, end); });
}

inline void fill_all(const KernelContext& context, const TensorView& view, double value) {
  parallel_ranges(context, view.element_count(), 65536,
                  [&](int64_t begin, int64_t end) { fill_range(view, begin, end, value); });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
