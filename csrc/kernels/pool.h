// What the kernels of pooling share on all devices: the geometry of windows. A place is the number
// of the largest element in its window, row by row, in one byte: an eighth of torch's index, as in
// torch.compile's low-memory max pooling (torch/_inductor/lowering.py).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/attr.h"
#include "kernels/kernel.h"
#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The place in a window that lies beside the image altogether.
inline constexpr uint8_t kNoPlace = 255;

/// Places in [first, last) of a window along one axis that lie inside; place 0 is at `start`.
struct WindowPart {
  int64_t start, first, last;
};

/// Windows along one axis of an image.
struct PoolAxis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, pad = 0, dilation = 1;

  ORTM_HD WindowPart window(int64_t o) const {
    const int64_t start = o * stride - pad;
    const int64_t first = start >= 0 ? 0 : (dilation - 1 - start) / dilation;
    const int64_t inside = start >= in ? 0 : (in - start + dilation - 1) / dilation;
    return {start, first, inside < kernel ? inside : kernel};
  }
  /// Windows [first, last) that may hold position i.
  ORTM_HD int64_t first_window(int64_t i) const {
    const int64_t behind = i + pad - (kernel - 1) * dilation;
    return behind <= 0 ? 0 : (behind + stride - 1) / stride;
  }
  ORTM_HD int64_t last_window(int64_t i) const {
    const int64_t last = (i + pad) / stride + 1;
    return last < out ? last : out;
  }
  /// The place of position i in window o, or -1.
  ORTM_HD int64_t place(int64_t o, int64_t i) const {
    const int64_t distance = i + pad - o * stride;
    return distance % dilation == 0 ? distance / dilation : -1;
  }
};

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
    strides.push_back(strides_like(output.layout.sizes, facts.inputs[0].layout));
  return strides;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
