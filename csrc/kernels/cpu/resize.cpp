// Resize of x [N, C, ...] in any number of dimensions, with all of ONNX's modes: y is a sum of
// elements of x whose weights are products of those along each dimension (kernels/resize_taps.h).
// Method: for each line of y the lines of x that it reads are added into one, of which its elements
// are then sums; nearest modes copy. An element is a row of channels if x is channels-last, which
// changes no bit. Bytes moved: x once for each line of y that reads it, y once.
#include <array>
#include <memory>

#include "kernels/cpu/row_math.h"
#include "kernels/memory_format.h"
#include "kernels/resize_taps.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kTasks = 16;  // each has a line of sums in the workspace
constexpr size_t kMostSpatial = 6;

struct Resizing {
  std::vector<ResizeTaps> axes;
  int64_t planes = 1, in_pixels = 1, lines = 1;  // lines of a plane of y
  int64_t channels = 1;                          // of a pixel, where they are neighbours
  bool copies = false;                           // all weights are 1
  double outside = 0;                            // the value for extrapolation

  const ResizeTaps& last() const { return axes.back(); }
};

std::shared_ptr<const void> prepare_resizing(const StepFacts& facts) {
  const Sizes& x = facts.inputs[0].layout.sizes;
  const ResizeMode mode = *resize_mode(facts.node().attrs);
  auto r = std::make_shared<Resizing>();
  r->channels = is_pixel_major(facts.inputs[0].layout) ? x[1] : 1;
  r->planes = x[0] * x[1] / r->channels;
  r->copies = mode.kind == ResizeMode::Kind::Nearest;
  r->outside = facts.node().attrs.number("extrapolation_value", 0.0);
  for (size_t d = 0; d + 2 < x.size(); ++d) {
    r->axes.push_back(resize_taps(mode, facts, d));
    r->in_pixels *= x[d + 2];
    if (d + 3 < x.size()) r->lines *= r->axes[d].out;
  }
  return r;
}

Reason unsupported(const StepFacts& facts) {
  const auto mode = resize_mode(facts.node().attrs);
  if (!mode) return "its attributes name no mode";
  if (facts.inputs[0].layout.sizes.size() - 2 > kMostSpatial)
    return str("it takes at most ", kMostSpatial, " spatial dimensions");
  if (element_count(facts.inputs[0].layout.sizes) == 0 &&
      element_count(facts.outputs[0].layout.sizes) != 0)
    return "x is empty";
  if (mode->kind != ResizeMode::Kind::Nearest && !kAllFloats.contains(facts.inputs[0].dtype))
    return "it interpolates floats only";
  return {};
}

size_t workspace_bytes(const StepFacts& facts) {
  const size_t width = facts.inputs[0].dtype == DType::Float64 ? 8 : 4;
  const Layout& x = facts.inputs[0].layout;
  const int64_t channels = is_pixel_major(x) ? x.sizes[1] : 1;
  return static_cast<size_t>(kTasks * x.sizes.back() * channels) * width;
}

/// body(line of x, weight) for the lines that a line of y reads; nothing if it lies outside.
template <class Body>
void for_each_source(const Resizing& r, int64_t line, const Body& body) {
  const size_t outer = r.axes.size() - 1;
  std::array<int64_t, kMostSpatial> first{}, count{}, tap{};
  for (size_t d = outer; d-- > 0;) {
    const ResizeTaps& axis = r.axes[d];
    const auto o = static_cast<size_t>(line % axis.out);
    line /= axis.out;
    first[d] = axis.begin[o];
    count[d] = axis.begin[o + 1] - axis.begin[o];
    if (count[d] == 0) return;
  }
  for (bool more = true; more;) {
    int64_t source = 0;
    double weight = 1;
    for (size_t d = 0; d < outer; ++d) {
      const auto t = static_cast<size_t>(first[d] + tap[d]);
      source = source * r.axes[d].in + r.axes[d].indices[t];
      weight *= r.axes[d].weights[t];
    }
    body(source, weight);
    more = false;
    for (size_t d = outer; d-- > 0 && !more;) {
      more = ++tap[d] < count[d];
      if (!more) tap[d] = 0;
    }
  }
}

/// A line of y whose weights are 1.
template <class T>
void copy_line(const Resizing& r, const T* plane, int64_t line, T outside, T* y) {
  const ResizeTaps& axis = r.last();
  const T* from = nullptr;
  const int64_t channels = r.channels;
  for_each_source(r, line,
                  [&](int64_t source, double) { from = plane + source * axis.in * channels; });
  for (int64_t o = 0; o < axis.out; ++o) {
    const auto at = static_cast<size_t>(o);
    const bool has_tap = from && axis.begin[at + 1] > axis.begin[at];
    const int64_t tap = has_tap ? axis.indices[static_cast<size_t>(axis.begin[at])] : 0;
    if (channels == 1) {
      y[o] = has_tap ? from[tap] : outside;
    } else if (has_tap) {
      std::copy_n(from + tap * channels, channels, y + o * channels);
    } else {
      std::fill_n(y + o * channels, channels, outside);
    }
  }
}

/// The channels of pixel o of a line of y.
template <class T>
void interpolate_pixel(const Resizing& r, int64_t o, const ComputeOf<T>* line, T* y) {
  using C = ComputeOf<T>;
  const ResizeTaps& axis = r.last();
  const auto begin = static_cast<size_t>(axis.begin[static_cast<size_t>(o)]);
  const auto end = static_cast<size_t>(axis.begin[static_cast<size_t>(o) + 1]);
  for_each_chunk(r.channels, [&](int64_t first, int64_t count) {
    C sums[kRowChunk];
    std::fill_n(sums, count, C(0));
    for (size_t t = begin; t < end; ++t) {
      const auto weight = static_cast<C>(axis.weights[t]);
      const C* from = line + axis.indices[t] * r.channels + first;
      ORTM_SIMD
      for (int64_t c = 0; c < count; ++c) sums[c] += weight * from[c];
    }
    ORTM_SIMD
    for (int64_t c = 0; c < count; ++c) y[first + c] = stored<T>(sums[c]);
  });
}

/// A line of y; `sums` holds a line of x.
template <class T>
void interpolate_line(const Resizing& r, const T* plane, int64_t line, ComputeOf<T>* sums, T* y) {
  using C = ComputeOf<T>;
  const ResizeTaps& axis = r.last();
  const int64_t width = axis.in * r.channels;
  bool found = false;
  for_each_source(r, line, [&](int64_t source, double weight) {
    const T* from = plane + source * width;
    const auto factor = static_cast<C>(weight);
    if (!found) {
      ORTM_SIMD
      for (int64_t i = 0; i < width; ++i) sums[i] = factor * computed(from[i]);
    } else {
      ORTM_SIMD
      for (int64_t i = 0; i < width; ++i) sums[i] += factor * computed(from[i]);
    }
    found = true;
  });
  for (int64_t o = 0; o < axis.out; ++o) {
    const int64_t begin = axis.begin[static_cast<size_t>(o)];
    const int64_t end = axis.begin[static_cast<size_t>(o) + 1];
    if (!found || begin == end) {
      std::fill_n(y + o * r.channels, r.channels, stored<T>(static_cast<C>(r.outside)));
    } else if (r.channels > 1) {
      interpolate_pixel(r, o, sums, y + o * r.channels);
    } else {
      C sum = 0;
      for (int64_t t = begin; t < end; ++t)
        sum += static_cast<C>(axis.weights[static_cast<size_t>(t)]) *
               sums[axis.indices[static_cast<size_t>(t)]];
      y[o] = stored<T>(sum);
    }
  }
}

/// body(plane, line, task) for all lines of y.
template <class Body>
void for_each_line(const KernelArgs& args, const Resizing& r, const Body& body) {
  const int64_t all = r.planes * r.lines, tasks = std::min(kTasks, all);
  if (all == 0) return;
  const int64_t per_task = ceil_div(all, tasks) * (r.last().in + r.last().out) * r.channels;
  parallel_ranges(args.context, tasks, grain_for(per_task), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task)
      for (int64_t i = all * task / tasks; i < all * (task + 1) / tasks; ++i)
        body(i / r.lines, i % r.lines, task);
  });
}

template <class T>
void copy(const KernelArgs& args, const Resizing& r, T outside) {
  for_each_line(args, r, [&](int64_t plane, int64_t line, int64_t) {
    copy_line(r, args.in[0].as<T>() + plane * r.in_pixels * r.channels, line, outside,
              args.out[0].as<T>() + (plane * r.lines + line) * r.last().out * r.channels);
  });
}

void resize(const KernelArgs& args) {
  const auto& r = *static_cast<const Resizing*>(args.prepared);
  if (r.copies)
    return dispatch_real(args.in[0].dtype,
                         [&]<class T> { copy<T>(args, r, stored<T>(r.outside)); });
  dispatch_float(args.in[0].dtype, [&]<class T> {
    auto* sums = static_cast<ComputeOf<T>*>(args.workspace);
    for_each_line(args, r, [&](int64_t plane, int64_t line, int64_t task) {
      interpolate_line(r, args.in[0].as<T>() + plane * r.in_pixels * r.channels, line,
                       sums + task * r.last().in * r.channels,
                       args.out[0].as<T>() + (plane * r.lines + line) * r.last().out * r.channels);
    });
  });
}

std::vector<Sizes> strides_like_x(const StepFacts& facts) {
  return {strides_in_format(facts.inputs[0].layout, facts.outputs[0].layout.sizes)};
}

REGISTER_CPU_KERNEL({.op = "Resize",
                     .name = "resize_cpu",
                     .dtypes = kRealTypes,
                     .run = resize,
                     .unsupported = unsupported,
                     .workspace_bytes = workspace_bytes,
                     .output_strides = strides_like_x,
                     .prepare = prepare_resizing,
                     .layout = LayoutRule::MemoryFormat,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
