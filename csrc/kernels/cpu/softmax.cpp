// Softmax over any axis and its relatives:
//   y = exp(x - max) / sum exp(x - max)       SoftmaxGrad:    dx = y (dy - sum dy y)
//   y = x - max - log sum exp(x - max)        LogSoftmaxGrad: dx = dy - exp(y) sum dy
//   BiasSoftmax: y = softmax(x + bias), the sum rounded to the type of x as Add would.
// Method: a row at a time, which stays in cache over its passes, or sixteen short ones
// (softmax_short_rows.h); along an axis that is not the last
// one, a strip of neighbouring columns at a time (softmax_columns.h), or, where there are too few
// to fill vectors, copies of them as rows. Rows of only -infinity give NaN, as in PyTorch. Bytes
// moved: each operand and the result once.
#include <cstring>

#include "kernels/bias_softmax.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/softmax_columns.h"
#include "kernels/cpu/softmax_short_rows.h"
#include "kernels/iteration.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// Longest row of 16-bit floats that is converted once and kept; longer ones are converted per pass.
constexpr int64_t kKeptRow = 4096;

template <class C>
void scale_row(C* x, int64_t count, C factor) {
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

// A row of n elements, by its operands, of which the second one of forward is not read. T is the
// stored type.
template <class T>
struct SoftmaxRow {
  using C = ComputeOf<T>;
  static void run(const T* x, const T*, T* y, int64_t n) {
    if (n <= 0) return;
    if (!kIsHalf<T> || n <= kKeptRow) {
      C buffer[kIsHalf<T> ? kKeptRow : 1];
      const C* values = computed_row(x, n, buffer);
      C* out = writable_row(y, buffer);
      const double sum = row_exp(n, values, row_max(n, values), out);
      scale_row(out, n, static_cast<C>(1.0 / sum));
      store_row(y, out, n);
      return;
    }
    run_long(x, y, n);
  }

 private:
  static void run_long(const T* x, T* y, int64_t n) {
    C buffer[kRowChunk];
    C max = -std::numeric_limits<C>::infinity();
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      max = std::max(max, row_max(count, computed_row(x + at, count, buffer)));
    });
    double sum = 0;
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      sum += row_sum_exp(count, computed_row(x + at, count, buffer), max);
    });
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      row_exp(count, computed_row(x + at, count, buffer), max, buffer);
      scale_row(buffer, count, static_cast<C>(1.0 / sum));
      store_row(y + at, buffer, count);
    });
  }
};

template <class T>
struct LogSoftmaxRow {
  using C = ComputeOf<T>;
  static void run(const T* x, const T*, T* y, int64_t n) {
    C buffer[kRowChunk];
    C max = -std::numeric_limits<C>::infinity();
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      max = std::max(max, row_max(count, computed_row(x + at, count, buffer)));
    });
    double sum = 0;
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      sum += row_sum_exp(count, computed_row(x + at, count, buffer), max);
    });
    const C log_sum = static_cast<C>(std::log(sum));
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      const C* values = computed_row(x + at, count, buffer);
      C* out = writable_row(y + at, buffer);
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) out[i] = values[i] - max - log_sum;
      store_row(y + at, out, count);
    });
  }
};

template <class T>
struct SoftmaxGradRow {
  using C = ComputeOf<T>;
  static void run(const T* dy, const T* y, T* dx, int64_t n) {
    C dy_buffer[kRowChunk], y_buffer[kRowChunk];
    double dot = 0;
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      dot += row_sum(
          count, [](auto a, auto b) { return a * b; }, computed_row(dy + at, count, dy_buffer),
          computed_row(y + at, count, y_buffer));
    });
    const C sum = static_cast<C>(dot);
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      const C* a = computed_row(dy + at, count, dy_buffer);
      const C* b = computed_row(y + at, count, y_buffer);
      C* out = writable_row(dx + at, dy_buffer);
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) out[i] = b[i] * (a[i] - sum);
      store_row(dx + at, out, count);
    });
  }
};

template <class T>
struct LogSoftmaxGradRow {
  using C = ComputeOf<T>;
  static void run(const T* dy, const T* y, T* dx, int64_t n) {
    C dy_buffer[kRowChunk], exp_buffer[kRowChunk];
    double total = 0;
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      total += row_sum(
          count, [](auto a) { return a; }, computed_row(dy + at, count, dy_buffer));
    });
    const C sum = static_cast<C>(total);
    for_each_chunk(n, [&](int64_t at, int64_t count) {
      const C* a = computed_row(dy + at, count, dy_buffer);
      row_exp(count, computed_row(y + at, count, exp_buffer), C(0), exp_buffer);
      C* out = writable_row(dx + at, dy_buffer);
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) out[i] = a[i] - exp_buffer[i] * sum;
      store_row(dx + at, out, count);
    });
  }
};

// `rows` rows of n elements that follow one another.
template <template <class> class Row, template <class> class ShortRows, class T>
void run_each_row(const T* first, const T* second, T* out, int64_t rows, int64_t n) {
  if constexpr (std::is_same_v<ComputeOf<T>, float>) {
    if (is_short(n, ShortRows<T>::kLongest))
      return for_each_rows_together(rows, [&](int64_t row, int64_t count) {
        const int64_t at = row * n;
        ShortRows<T>::run(first + at, second + at, out + at, count, n);
      });
  }
  for (int64_t at = 0; at < rows * n; at += n) Row<T>::run(first + at, second + at, out + at, n);
}

// --- along an axis that is not the last one ------------------------------------------------------
AxisSplit axis_split(const StepFacts& facts) {
  return split_at(facts.outputs[0].layout.sizes, facts.node().attrs.integer("axis", -1));
}

// Whether the columns of a plane are too few for vectors, so that they are copied to rows.
bool is_narrow(const AxisSplit& split) { return split.inner < kLeastColumns; }

// Copies the columns of an [n, inner] plane to rows of n, or back.
template <class T>
void gather_columns(const T* plane, int64_t n, int64_t inner, T* rows) {
  for (int64_t j = 0; j < n; ++j)
    for (int64_t c = 0; c < inner; ++c) rows[c * n + j] = plane[j * inner + c];
}
template <class T>
void scatter_columns(const T* rows, int64_t n, int64_t inner, T* plane) {
  for (int64_t j = 0; j < n; ++j)
    for (int64_t c = 0; c < inner; ++c) plane[j * inner + c] = rows[c * n + j];
}

// Narrow planes are copied in as many tasks as the workspace has room for.
int64_t plane_tasks(const AxisSplit& split) { return std::min<int64_t>(16, split.outer); }

size_t plane_bytes(const StepFacts& facts) {
  const AxisSplit split = axis_split(facts);
  if (split.inner == 1 || !is_narrow(split)) return 0;
  const size_t elements = static_cast<size_t>(plane_tasks(split) * split.inner * split.axis);
  return elements * facts.inputs.size() * size_of(facts.inputs[0].dtype);
}

template <class T, class Rows>
void run_narrow_planes(const KernelArgs& args, const AxisSplit& split, const Rows& run) {
  const int64_t operands = static_cast<int64_t>(args.in.size());
  const int64_t tasks = plane_tasks(split), plane = split.inner * split.axis;
  auto run_task = [&](int64_t task) {
    T* rows = static_cast<T*>(args.workspace) + task * operands * plane;
    T* operand_rows[2] = {rows, rows + (operands - 1) * plane};
    for (int64_t item = task; item < split.outer; item += tasks) {
      for (size_t k = 0; k < args.in.size(); ++k)
        gather_columns(args.in[k].template as<T>() + item * plane, split.axis, split.inner,
                       operand_rows[k]);
      run(operand_rows[0], operand_rows[1], operand_rows[0], split.inner);
      scatter_columns(operand_rows[0], split.axis, split.inner,
                      args.out[0].template as<T>() + item * plane);
    }
  };
  const int64_t per_task = plane * split.outer / tasks;
  parallel_ranges(args.context, tasks, grain_for(per_task), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) run_task(task);
  });
}

// columns(strip, first, second, out), where `second` is the last operand.
template <class T, class Columns>
void run_column_strips(const KernelArgs& args, const AxisSplit& split, const Columns& columns) {
  const int64_t width = columns_together(split.axis), per_plane = ceil_div(split.inner, width);
  const T* first = args.in.front().template as<T>();
  const T* second = args.in.back().template as<T>();
  T* out = args.out[0].template as<T>();
  parallel_ranges(args.context, split.outer * per_plane, grain_for(split.axis * width),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) {
                      const int64_t column = item % per_plane * width;
                      const int64_t at = item / per_plane * split.axis * split.inner + column;
                      const int64_t count = std::min(width, split.inner - column);
                      columns({split.axis, split.inner, count}, first + at, second + at, out + at);
                    }
                  });
}

// run(first, second, out, rows) along the last axis; `second` is the last operand, which is the
// first one if there is only one.
template <class T, class Rows>
void run_rows(const KernelArgs& args, const AxisSplit& split, const Rows& run) {
  const T* first = args.in.front().template as<T>();
  const T* second = args.in.back().template as<T>();
  T* out = args.out[0].template as<T>();
  parallel_ranges(args.context, split.outer, grain_for(split.axis),
                  [&](int64_t begin, int64_t end) {
                    const int64_t at = begin * split.axis;
                    run(first + at, second + at, out + at, end - begin);
                  });
}

template <class T, class Rows, class Columns>
void run_axis(const KernelArgs& args, const Rows& run, const Columns& columns) {
  const AxisSplit split = axis_split(args.facts);
  if (split.outer * split.axis * split.inner == 0) return;
  if (split.inner == 1) return run_rows<T>(args, split, run);
  if (is_narrow(split)) return run_narrow_planes<T>(args, split, run);
  run_column_strips<T>(args, split, columns);
}

template <template <class> class Row, template <class> class ShortRows,
          template <class> class Columns>
void run_op(const KernelArgs& args) {
  const int64_t n = axis_split(args.facts).axis;
  dispatch_float(args.in[0].dtype, [&]<class T> {
    const auto run = [n](const T* first, const T* second, T* out, int64_t rows) {
      run_each_row<Row, ShortRows>(first, second, out, rows, n);
    };
    run_axis<T>(args, run, Columns<T>::run);
  });
}

// --- bias ----------------------------------------------------------------------------------------
template <class T>
void add_bias(const T* x, const T* bias, int64_t stride, T* y, int64_t n) {
  using C = ComputeOf<T>;
  if (stride == 1) {
    ORTM_SIMD
    for (int64_t i = 0; i < n; ++i) y[i] = stored<T>(C(computed(x[i]) + computed(bias[i])));
  } else {
    for (int64_t i = 0; i < n; ++i)
      y[i] = stored<T>(C(computed(x[i]) + computed(bias[i * stride])));
  }
}

// The space of rows: dimensions before the last one, operand 0 the bias.
std::shared_ptr<const void> prepare_bias(const StepFacts& facts) {
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  Sizes strides = broadcast_strides(facts.inputs[1].layout, sizes);
  auto space = std::make_shared<IterationSpace>();
  space->rank = static_cast<int>(sizes.size()) - 1;
  space->strides.assign(1, Coords{});
  for (int d = 0; d < space->rank; ++d) {
    space->sizes[d] = sizes[static_cast<size_t>(d)];
    space->strides[0][d] = strides[static_cast<size_t>(d)];
  }
  return space;
}

template <class T>
void bias_softmax(const KernelArgs& args) {
  const AxisSplit split = axis_split(args.facts);
  const IterationSpace& rows = *static_cast<const IterationSpace*>(args.prepared);
  const TensorView& bias = args.in[1];
  const bool spread = bias.rank == 0 || bias.sizes[bias.rank - 1] == 1;
  const int64_t stride = spread ? 0 : bias.strides[bias.rank - 1];
  const int64_t n = split.axis;
  parallel_ranges(args.context, split.outer, grain_for(n), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kRowsTogether) {
      const int64_t last = std::min(first + kRowsTogether, end);
      for (int64_t i = first; i < last; ++i) {
        const int64_t at = rows.rank ? rows.offset(0, rows.unravel(i)) : 0;
        add_bias(args.in[0].as<T>() + i * n, bias.as<T>() + at, stride, args.out[0].as<T>() + i * n,
                 n);
      }
      T* y = args.out[0].as<T>() + first * n;
      run_each_row<SoftmaxRow, SoftmaxShortRows>(static_cast<const T*>(y), static_cast<const T*>(y),
                                                 y, last - first, n);
    }
  });
}

void run_bias_softmax(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { bias_softmax<T>(args); });
}

REGISTER_CPU_KERNEL({.op = "Softmax",
                     .name = "softmax_cpu",
                     .dtypes = kAllFloats,
                     .run = run_op<SoftmaxRow, SoftmaxShortRows, SoftmaxColumns>,
                     .workspace_bytes = plane_bytes,
                     .inplace = true});
REGISTER_CPU_KERNEL({.op = "LogSoftmax",
                     .name = "log_softmax_cpu",
                     .dtypes = kAllFloats,
                     .run = run_op<LogSoftmaxRow, LogSoftmaxShortRows, LogSoftmaxColumns>,
                     .workspace_bytes = plane_bytes,
                     .inplace = true});
REGISTER_CPU_KERNEL({.op = "SoftmaxGrad",
                     .name = "softmax_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_op<SoftmaxGradRow, SoftmaxGradShortRows, SoftmaxGradColumns>,
                     .workspace_bytes = plane_bytes,
                     .inplace = true});
REGISTER_CPU_KERNEL(
    {.op = "LogSoftmaxGrad",
     .name = "log_softmax_grad_cpu",
     .dtypes = kAllFloats,
     .run = run_op<LogSoftmaxGradRow, LogSoftmaxGradShortRows, LogSoftmaxGradColumns>,
     .workspace_bytes = plane_bytes,
     .inplace = true});
REGISTER_CPU_KERNEL({.op = "BiasSoftmax",
                     .name = "bias_softmax_cpu",
                     .dtypes = kAllFloats,
                     .run = run_bias_softmax,
                     .unsupported = bias_softmax_unsupported,
                     .prepare = prepare_bias,
                     .input_rules = {LayoutRule::Contiguous, LayoutRule::Any},
                     .inplace = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
