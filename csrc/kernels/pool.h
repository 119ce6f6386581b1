// What the kernels of pooling share on all devices: the geometry of windows. A place is the number
// of the largest element in its window, row by row, in one byte: an eighth of torch's index, as in
// torch.compile's low-memory max pooling (torch/_inductor/lowering.py).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/attr.h"
#include "kernels/integer_division.h"
#include "kernels/kernel.h"
#include "kernels/memory_format.h"
#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The place in a window that lies beside the image altogether.
inline constexpr uint8_t kNoPlace = 255;

/// Places in [first, last) of a window along one axis that lie inside; place 0 is at `start`.
template <class N>
struct WindowPart {
  N start, first, last;
};

/// Windows along one axis of an image. N is the type of positions, D that of what they are divided
/// by: an integer, or what multiplies instead (cuda/fast_divisor.h) and has value_of and quotient.
template <class N, class D>
struct PoolAxisOf {
  N in{1}, out{1}, kernel{1};
  D stride{1};
  N pad{0};
  D dilation{1};

  ORTM_HD WindowPart<N> window(N o) const {
    const N start = o * value_of(stride) - pad, gap = value_of(dilation) - 1;
    const N first = start >= 0 ? 0 : quotient(gap - start, dilation);
    const N inside = start >= in ? 0 : quotient(in - start + gap, dilation);
    return {start, first, inside < kernel ? inside : kernel};
  }
  /// Windows [first, last) that may hold position i.
  ORTM_HD N first_window(N i) const {
    const N behind = i + pad - (kernel - 1) * value_of(dilation);
    return behind <= 0 ? 0 : quotient(behind + value_of(stride) - 1, stride);
  }
  ORTM_HD N last_window(N i) const {
    const N last = quotient(i + pad, stride) + 1;
    return last < out ? last : out;
  }
  /// The place of position i in window o, or -1. Windows outside of [first_window, last_window) are
  /// not asked about.
  ORTM_HD N place(N o, N i) const {
    const N distance = i + pad - o * value_of(stride);
    const N at = quotient(distance, dilation);
    return at * value_of(dilation) == distance ? at : -1;
  }
};
using PoolAxis = PoolAxisOf<int64_t, int64_t>;

struct PoolShape {
  int64_t images = 0, channels = 0;
  PoolAxis rows, columns;

  /// `in` and `out`: sizes of the tensors before and after pooling.
  PoolShape(const Sizes& in, const Sizes& out, const Attrs& attrs)
      : images(in[0]),
        channels(in[1]),
        rows(axis(in, out, attrs, 0)),
        columns(axis(in, out, attrs, 1)) {}

  /// How far a place lies behind the first one of its window.
  ORTM_HD int64_t offset_in_window(int64_t place, int64_t row_stride, int64_t column_stride) const {
    return place / columns.kernel * rows.dilation * row_stride +
           place % columns.kernel * columns.dilation * column_stride;
  }
  /// torch's index of a place of the window at (row, column): counted through the plane of x.
  ORTM_HD int64_t index(int64_t row, int64_t column, uint8_t place) const {
    if (place == kNoPlace) return 0;
    return (row * rows.stride - rows.pad) * columns.in + column * columns.stride - columns.pad +
           offset_in_window(place, columns.in, 1);
  }

 private:
  static PoolAxis axis(const Sizes& in, const Sizes& out, const Attrs& attrs, size_t i) {
    return {in[i + 2],
            out[i + 2],
            attrs.integers("kernel_shape")[i],
            attrs.integers("strides")[i],
            attrs.integers("pads")[i],
            attrs.integers("dilations")[i]};
  }
};

/// Why a MaxPool or MaxPoolGrad step is not one of images with places of one byte, or nothing.
inline Reason image_pool_unsupported(const StepFacts& facts) {
  const std::vector<int64_t> kernel = facts.node().attrs.integers("kernel_shape");
  if (kernel.size() != 2) return "the windows do not have two dimensions";
  if (kernel[0] * kernel[1] > kNoPlace) return "the window has more than 255 places";
  return {};
}

/// The shape of MaxPool, worked out once per plan.
inline std::shared_ptr<const void> prepare_max_pool(const StepFacts& facts) {
  return std::make_shared<const PoolShape>(facts.inputs[0].layout.sizes,
                                           facts.outputs[0].layout.sizes, facts.node().attrs);
}
/// The same of MaxPoolGrad, which goes from dy to dx.
inline std::shared_ptr<const void> prepare_max_pool_grad(const StepFacts& facts) {
  return std::make_shared<const PoolShape>(facts.outputs[0].layout.sizes,
                                           facts.inputs[0].layout.sizes, facts.node().attrs);
}

/// Results in the memory format of x, the gradient in that of the incoming one.
inline std::vector<Sizes> pooled_strides(const StepFacts& facts) {
  std::vector<Sizes> strides;
  for (const OperandFacts& output : facts.outputs)
    strides.push_back(strides_in_format(facts.inputs[0].layout, output.layout.sizes));
  return strides;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
