// Resize of x [N, C, ...] in any number of dimensions, with all of ONNX's modes: y is a sum of
// elements of x whose weights are products of those along each dimension (kernels/resize_taps.h).
// Method: where y has at least as many lines as x, a line of x is stretched once, and lines of y
// are sums of stretched ones, which are kept while neighbouring lines read them. Else the lines of
// x that a line of y reads are added first, and its elements are sums of that; nearest modes copy.
// An element is a row of channels if x is channels-last, which changes no bit. Bytes moved: x once
// for each line of y that reads it, y once.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <type_traits>

#include "kernels/cpu/resize_order.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kTasks = 16;  // each has lines in the workspace

std::shared_ptr<const void> prepare_resizing(const StepFacts& facts) {
  return resizing_of(*resize_mode(facts.node().attrs), facts);
}

Reason unsupported(const StepFacts& facts) {
  const auto mode = resize_mode(facts.node().attrs);
  const Sizes& sizes = facts.inputs[0].layout.sizes;
  if (!mode) return "its attributes name no mode";
  if (sizes.size() - 2 > kMostSpatial)
    return str("it takes at most ", kMostSpatial, " spatial dimensions");
  if (sizes.back() > std::numeric_limits<int32_t>::max()) return "a line has too many elements";
  if (element_count(sizes) == 0 && element_count(facts.outputs[0].layout.sizes) != 0)
    return "x is empty";
  if (mode->kind != ResizeMode::Kind::Nearest && !kAllFloats.contains(facts.inputs[0].dtype))
    return "it interpolates floats only";
  return {};
}

size_t workspace_bytes(const StepFacts& facts) {
  const ResizeMode mode = *resize_mode(facts.node().attrs);
  if (mode.kind == ResizeMode::Kind::Nearest) return 0;
  const size_t width = facts.inputs[0].dtype == DType::Float64 ? 8 : 4;
  return static_cast<size_t>(kTasks * resizing_of(mode, facts)->task_elements()) * width;
}

/// y: each element of a line twice.
template <class T>
void double_elements(const T* from, int64_t width, T* y) {
  if constexpr (sizeof(T) == sizeof(float)) {  // as bits: nothing is computed
    constexpr int64_t kCount = FloatVec::kCount;
    IntLanes low, high;
    for (int32_t i = 0; i < kCount; ++i) {
      low[i] = i / 2;
      high[i] = (i + static_cast<int32_t>(kCount)) / 2;
    }
    const auto double_vector = [&](int64_t i) {
      const FloatVec x = FloatVec::load(reinterpret_cast<const float*>(from + i));
      auto* to = reinterpret_cast<float*>(y + 2 * i);
      FloatVec(__builtin_shuffle(x.v, low)).store(to);
      FloatVec(__builtin_shuffle(x.v, high)).store(to + kCount);
    };
    int64_t i = 0;
    for (; i + kCount <= width; i += kCount) double_vector(i);
    if (i == width) return;
    if (i > 0) return double_vector(width - kCount);
  }
  ORTM_SIMD
  for (int64_t i = 0; i < width; ++i) {
    y[2 * i] = from[i];
    y[2 * i + 1] = from[i];
  }
}

/// All planes with twice the lines and columns.
template <class T>
void double_lines(const KernelArgs& args, const Resizing& r) {
  const T* x = args.in[0].as<T>();
  T* y = args.out[0].as<T>();
  const int64_t width = r.in_width();
  parallel_ranges(args.context, r.planes * r.in_lines, grain_for(4 * width),
                  [&](int64_t begin, int64_t end) {
                    // Line by line: memory takes longer where two are written side by side.
                    for (int64_t i = 2 * begin; i < 2 * end; ++i)
                      double_elements(x + i / 2 * width, width, y + i * 2 * width);
                  });
}

/// A line of y whose weights are 1.
template <class T>
void copy_line(const Resizing& r, const T* from, T outside, T* y) {
  const EvenTaps& taps = r.even;
  const int32_t* at = taps.at(0);
  if (r.channels == 1 && taps.is_doubled) {
    double_elements(from, r.last().in, y);
  } else if (r.channels == 1) {
    const int64_t width = r.last().out;
    ORTM_SIMD
    for (int64_t o = 0; o < width; ++o) y[o] = from[at[o]];
  } else {
    for (int64_t o = 0; o < r.last().out; ++o)
      std::copy_n(from + at[o] * r.channels, r.channels, y + o * r.channels);
  }
  for (const int64_t o : taps.outside) std::fill_n(y + o * r.channels, r.channels, outside);
}

/// Row of y: a sum of elements of x, in whole vectors.
template <class C>
void stretch_elements(const EvenTaps& taps, const C* x, C* row) {
  const auto width = static_cast<int64_t>(taps.width);
  for (size_t t = 0; t < taps.count; ++t) {
    const int32_t* at = taps.at(t);
    const C* weights = taps.weights<C>(t);
    if (t == 0) {
      ORTM_SIMD
      for (int64_t o = 0; o < width; ++o) row[o] = weights[o] * x[at[o]];
    } else {
      ORTM_SIMD
      for (int64_t o = 0; o < width; ++o) row[o] += weights[o] * x[at[o]];
    }
  }
}

template <class C>
void stretch_pixels(const Resizing& r, const C* x, C* row) {
  const int64_t channels = r.channels;
  for (int64_t o = 0; o < r.last().out; ++o, row += channels)
    for (size_t t = 0; t < r.even.count; ++t) {
      const C weight = r.even.weights<C>(t)[o];
      const C* from = x + r.even.at(t)[o] * channels;
      if (t == 0) {
        ORTM_SIMD
        for (int64_t c = 0; c < channels; ++c) row[c] = weight * from[c];
      } else {
        ORTM_SIMD
        for (int64_t c = 0; c < channels; ++c) row[c] += weight * from[c];
      }
    }
}

/// A line of x in the width of y.
template <class C>
void stretch_line(const Resizing& r, const C* x, C* row) {
  if (r.channels > 1)
    stretch_pixels(r, x, row);
  else
    stretch_elements(r.even, x, row);
}

/// The line of x as it is computed with; `memory` for one of another type.
template <class T>
const ComputeOf<T>* computed_line(const T* x, int64_t width, ComputeOf<T>* memory) {
  if constexpr (std::is_same_v<T, ComputeOf<T>>) {
    return x;
  } else {
    ORTM_SIMD
    for (int64_t i = 0; i < width; ++i) memory[i] = computed(x[i]);
    return memory;
  }
}

template <class T>
void store_row(const ComputeOf<T>* row, int64_t width, T* y) {
  if constexpr (std::is_same_v<T, ComputeOf<T>>) {
    std::copy_n(row, width, y);
  } else {
    ORTM_SIMD
    for (int64_t i = 0; i < width; ++i) y[i] = stored<T>(row[i]);
  }
}

template <class C>
struct WeightedRows {
  std::array<const C*, kMostKept> rows{};
  std::array<C, kMostKept> weights{};
  size_t count = 0;
};

/// y: the sum of the rows.
template <class T>
void add_rows(const WeightedRows<ComputeOf<T>>& r, int64_t width, T* y) {
  using C = ComputeOf<T>;
  const C *a = r.rows[0], *b = r.rows[1];
  const C first = r.weights[0], second = r.weights[1];
  if (r.count == 1) {
    ORTM_SIMD
    for (int64_t i = 0; i < width; ++i) y[i] = stored<T>(first * a[i]);
  } else if (r.count == 2) {
    ORTM_SIMD
    for (int64_t i = 0; i < width; ++i) y[i] = stored<T>(first * a[i] + second * b[i]);
  } else {
    for_each_chunk(width, [&](int64_t begin, int64_t length) {
      C sums[kRowChunk];
      std::fill_n(sums, length, C(0));
      for (size_t k = 0; k < r.count; ++k) {
        const C* row = r.rows[k] + begin;
        const C weight = r.weights[k];
        ORTM_SIMD
        for (int64_t i = 0; i < length; ++i) sums[i] += weight * row[i];
      }
      ORTM_SIMD
      for (int64_t i = 0; i < length; ++i) y[begin + i] = stored<T>(sums[i]);
    });
  }
}

/// What a task works with: a line of x, and the stretched lines that it keeps.
template <class T>
class LineMaker {
 public:
  using C = ComputeOf<T>;

  LineMaker(const Resizing& r, const T* x, C* memory)
      : r_(r), x_(x), line_(memory), rows_(memory + r.in_width()) {
    held_.fill(-1);
  }

  void make(int64_t plane, int64_t line, T* y) {
    const bool found = r_.kept > 0 ? add_stretched(plane, line, y) : stretch_added(plane, line, y);
    const T outside = stored<T>(static_cast<C>(r_.outside));
    if (!found) std::fill_n(y, r_.out_width(), outside);
    for (const int64_t o : r_.even.outside) std::fill_n(y + o * r_.channels, r_.channels, outside);
  }

 private:
  bool add_stretched(int64_t plane, int64_t line, T* y) {
    WeightedRows<C> sum;
    for_each_source(r_, line, [&](const LineSource& source) {
      const int64_t key = plane * r_.in_lines + source.line;
      C* row = rows_ + source.place * r_.row_elements();
      int64_t& held = held_[static_cast<size_t>(source.place)];
      if (held != key)
        stretch_line(r_, computed_line(x_ + key * r_.in_width(), r_.in_width(), line_), row);
      held = key;
      sum.rows[sum.count] = row;
      sum.weights[sum.count++] = static_cast<C>(source.weight);
    });
    if (sum.count > 0) add_rows<T>(sum, r_.out_width(), y);
    return sum.count > 0;
  }

  bool stretch_added(int64_t plane, int64_t line, T* y) {
    const int64_t width = r_.in_width();
    bool found = false;
    for_each_source(r_, line, [&](const LineSource& source) {
      const T* from = x_ + (plane * r_.in_lines + source.line) * width;
      const auto weight = static_cast<C>(source.weight);
      C* sums = line_;
      if (!found) {
        ORTM_SIMD
        for (int64_t i = 0; i < width; ++i) sums[i] = weight * computed(from[i]);
      } else {
        ORTM_SIMD
        for (int64_t i = 0; i < width; ++i) sums[i] += weight * computed(from[i]);
      }
      found = true;
    });
    if (!found) return false;
    stretch_line(r_, line_, rows_);
    store_row<T>(rows_, r_.out_width(), y);
    return true;
  }

  const Resizing& r_;
  const T* x_;
  C *line_, *rows_;
  std::array<int64_t, kMostKept> held_{};
};

/// body(task, make_lines) for each task; make_lines(line_body) calls line_body(plane, line, i) for
/// its lines of y.
template <class Body>
void for_each_task(const KernelArgs& args, const Resizing& r, const Body& body) {
  const int64_t all = r.planes * r.lines, tasks = std::min(kTasks, all);
  if (all == 0) return;
  const int64_t per_task = ceil_div(all, tasks) * (r.in_width() + r.out_width());
  parallel_ranges(args.context, tasks, grain_for(per_task), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task)
      body(task, [&](const auto& make) {
        const int64_t first = all * task / tasks, last = all * (task + 1) / tasks;
        int64_t plane = first / r.lines, line = first % r.lines;
        for (int64_t i = first; i < last; ++i) {
          make(plane, line, i);
          const bool ends = ++line == r.lines;
          plane += ends ? 1 : 0;
          line = ends ? 0 : line;
        }
      });
  });
}

/// Lines of y that are the same line of x are copied from each other.
template <class T>
void copy(const KernelArgs& args, const Resizing& r, T outside) {
  if (r.doubles_lines && r.even.is_doubled && r.channels == 1) return double_lines<T>(args, r);
  const T* x = args.in[0].as<T>();
  const int64_t width = r.out_width();
  for_each_task(args, r, [&](int64_t, const auto& make_lines) {
    int64_t last = -1;
    make_lines([&](int64_t plane, int64_t line, int64_t i) {
      T* y = args.out[0].as<T>() + i * width;
      int64_t found = -1;
      for_each_source(r, line,
                      [&](const LineSource& source) { found = plane * r.in_lines + source.line; });
      if (found < 0)
        std::fill_n(y, width, outside);
      else if (found == last)
        std::copy_n(y - width, width, y);
      else
        copy_line(r, x + found * r.in_width(), outside, y);
      last = found;
    });
  });
}

void resize(const KernelArgs& args) {
  const auto& r = *static_cast<const Resizing*>(args.prepared);
  if (r.copies)
    return dispatch_real(args.in[0].dtype,
                         [&]<class T> { copy<T>(args, r, stored<T>(r.outside)); });
  dispatch_float(args.in[0].dtype, [&]<class T> {
    auto* memory = static_cast<ComputeOf<T>*>(args.workspace);
    for_each_task(args, r, [&](int64_t task, const auto& make_lines) {
      LineMaker<T> maker(r, args.in[0].as<T>(), memory + task * r.task_elements());
      make_lines([&](int64_t plane, int64_t line, int64_t i) {
        maker.make(plane, line, args.out[0].as<T>() + i * r.out_width());
      });
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
