// SimplifiedLayerNormalization (RMS norm) over the trailing dimensions from `axis`, per row:
//   inv = 1 / sqrt(sum x^2 / n + epsilon),  y = x inv scale
// SimplifiedLayerNormalizationGrad, with h = x inv and g = dy scale:
//   dx = inv (g - h mean(g h)),  dscale = sum_rows dy h
// Method and bytes moved: as layer_norm.cpp.
#include "kernels/cpu/layer_norm.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class T>
void normalize_row(const T* x, const T* scale, int64_t n, ComputeOf<T> inv, T* y) {
  using C = ComputeOf<T>;
  C buffer[kRowChunk], scale_buffer[kRowChunk];
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* values = computed_row(x + at, count, buffer);
    C* out = writable_row(y + at, buffer);
    if (scale) {
      const C* factors = computed_row(scale + at, count, scale_buffer);
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) out[i] = values[i] * inv * factors[i];
    } else {
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) out[i] = values[i] * inv;
    }
    store_row(y + at, out, count);
  });
}

template <class T>
void forward_short_rows(const T* x, const T* scale_row, int64_t row_count, int64_t n,
                        double epsilon, T* y, float* inverses) {
  float scale[kShortLightRow];
  if (scale_row) read_short(scale_row, n, scale);
  for_each_rows_together(row_count, [&](int64_t row, int64_t rows) {
    RowColumns columns(rows, n);
    columns.load(x + row * n);
    RowDoubles squares(0.0);
    for (int64_t j = 0; j < n; ++j) squares = squares + RowDoubles(columns[j] * columns[j]);
    const RowLanes inv = inverse_deviation(squares, n, epsilon);
    for (int64_t j = 0; j < n; ++j) {
      const RowLanes h = columns[j] * inv;
      columns.set(j, scale_row ? h * RowLanes(scale[j]) : h);
    }
    columns.store(y + row * n);
    // Last, since rows of one element may share their storage with it.
    if (inverses) inv.store(inverses + row, rows);
  });
}

template <class T>
void forward(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const NormShape shape = norm_shape(args.facts.outputs[0].layout.sizes, args.facts.node().attrs);
  const double epsilon = args.facts.node().attrs.number("epsilon", 1e-5);
  const int64_t n = shape.columns;
  const T* scale = data_or_null<T>(args.in, 1);
  C* inverses = data_or_null<C>(args.out, 1);
  parallel_ranges(args.context, shape.rows, grain_for(2 * n), [&](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<C, float>) {
      if (is_short(n, kShortLightRow)) {
        return forward_short_rows(args.in[0].as<T>() + begin * n, scale, end - begin, n, epsilon,
                                  args.out[0].as<T>() + begin * n,
                                  inverses ? inverses + begin : nullptr);
      }
    }
    C buffer[kRowChunk];
    for (int64_t row = begin; row < end; ++row) {
      const T* x = args.in[0].as<T>() + row * n;
      double squares = 0;
      for_each_chunk(n, [&](int64_t at, int64_t count) {
        squares += row_sum(
            count, [](auto v) { return v * v; }, computed_row(x + at, count, buffer));
      });
      const C inv = static_cast<C>(1.0 / std::sqrt(squares / static_cast<double>(n) + epsilon));
      normalize_row(x, scale, n, inv, args.out[0].as<T>() + row * n);
      // Last, since rows of one element may share their storage with it.
      if (inverses) inverses[row] = inv;
    }
  });
}

// Adds a row to the column sums and writes its dx.
template <class T>
void backward_row(const T* dy_row, const T* x_row, const T* scale_row, ComputeOf<T> inv, int64_t n,
                  T* dx_row, ComputeOf<T>* dscale) {
  using C = ComputeOf<T>;
  C dy_buffer[kRowChunk], x_buffer[kRowChunk], scale_buffer[kRowChunk], g[kRowChunk];
  const auto gradient_of = [&](int64_t at, int64_t count, const C* dy) -> const C* {
    if (!scale_row) return dy;
    const C* scale = computed_row(scale_row + at, count, scale_buffer);
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) g[i] = dy[i] * scale[i];
    return g;
  };
  double sum_gx = 0;
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* dy = computed_row(dy_row + at, count, dy_buffer);
    const C* x = computed_row(x_row + at, count, x_buffer);
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) dscale[at + i] += dy[i] * (x[i] * inv);
    sum_gx += row_sum(
        count, [](auto v, auto w) { return v * w; }, gradient_of(at, count, dy), x);
  });
  const double mean_gh = sum_gx * static_cast<double>(inv) / static_cast<double>(n);
  const C factor = static_cast<C>(mean_gh * static_cast<double>(inv));  // of x
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* x = computed_row(x_row + at, count, x_buffer);
    const C* gradient = gradient_of(at, count, computed_row(dy_row + at, count, dy_buffer));
    C* out = writable_row(dx_row + at, dy_buffer);
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) out[i] = inv * (gradient[i] - x[i] * factor);
    store_row(dx_row + at, out, count);
  });
}

// The same for `row_count` rows of at most kShortLightRow floats each; the column sums are added up
// over every sixteenth row first.
template <class T>
void backward_short_rows(const T* dy_rows, const T* x_rows, const T* scale_row,
                         const float* inv_row, int64_t row_count, int64_t n, T* dx_rows,
                         float* dscale) {
  float scale[kShortLightRow];
  RowLanes scale_sums[kShortLightRow];
  if (scale_row) read_short(scale_row, n, scale);
  std::fill(scale_sums, scale_sums + n, RowLanes(0.0f));
  for_each_rows_together(row_count, [&](int64_t row, int64_t rows) {
    const RowLanes inv = RowLanes::load(inv_row + row, rows);
    RowColumns dy(rows, n), x(rows, n);
    dy.load(dy_rows + row * n);
    x.load(x_rows + row * n);
    RowDoubles sum_gx(0.0);
    for (int64_t j = 0; j < n; ++j) {
      const RowLanes d = dy[j], v = x[j];
      scale_sums[j] = scale_sums[j] + d * (v * inv);
      const RowLanes g = scale_row ? d * RowLanes(scale[j]) : d;
      dy.set(j, g);
      sum_gx = sum_gx + RowDoubles(g * v);
    }
    const RowDoubles inverses(inv);
    const DoubleVec count(n);
    const RowLanes factor =  // of x
        map_doubles([&](DoubleVec sum, DoubleVec i) { return sum * i / count * i; }, sum_gx,
                    inverses)
            .rounded();
    for (int64_t j = 0; j < n; ++j) dy.set(j, inv * (dy[j] - x[j] * factor));
    dy.store(dx_rows + row * n);
  });
  for (int64_t j = 0; j < n; ++j) dscale[j] = sum_of_rows(scale_sums[j]);
}

size_t grad_workspace(const StepFacts& facts) {
  const NormShape shape = norm_shape(facts.inputs[1].layout.sizes, facts.node().attrs);
  const size_t width = facts.inputs[1].dtype == DType::Float64 ? 8 : 4;
  return static_cast<size_t>(row_blocks(shape.rows) * shape.columns) * width;
}

template <class T>
void backward(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const NormShape shape = norm_shape(args.facts.inputs[1].layout.sizes, args.facts.node().attrs);
  const int64_t n = shape.columns, blocks = row_blocks(shape.rows);
  const int64_t block_rows = rows_per_block(shape.rows);
  C* partials = static_cast<C*>(args.workspace);
  parallel_ranges(args.context, blocks, grain_for(block_rows * n), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      C* dscale = partials + block * n;
      const int64_t first = block * block_rows, last = std::min(shape.rows, first + block_rows);
      if constexpr (std::is_same_v<C, float>) {
        if (is_short(n, kShortLightRow)) {
          backward_short_rows(args.in[0].as<T>() + first * n, args.in[1].as<T>() + first * n,
                              args.in[2].as<T>(), args.in[3].as<C>() + first, last - first, n,
                              args.out[0].as<T>() + first * n, dscale);
          continue;
        }
      }
      std::fill(dscale, dscale + n, C(0));
      for (int64_t row = first; row < last; ++row)
        backward_row(args.in[0].as<T>() + row * n, args.in[1].as<T>() + row * n, args.in[2].as<T>(),
                     args.in[3].as<C>()[row], n, args.out[0].as<T>() + row * n, dscale);
    }
  });
  if (args.out.size() > 1 && args.out[1].data)
    reduce_partials<T>(args.context, partials, blocks, n, n, args.out[1].as<T>());
}

REGISTER_CPU_KERNEL({.op = "SimplifiedLayerNormalization",
                     .name = "simplified_layer_norm_cpu",
                     .dtypes = kAllFloats,
                     .run =
                         [](const KernelArgs& args) {
                           dispatch_float(args.in[0].dtype, [&]<class T> { forward<T>(args); });
                         },
                     .inplace = true});
REGISTER_CPU_KERNEL({.op = "SimplifiedLayerNormalizationGrad",
                     .name = "simplified_layer_norm_grad_cpu",
                     .dtypes = kAllFloats,
                     .run =
                         [](const KernelArgs& args) {
                           dispatch_float(args.in[1].dtype, [&]<class T> { backward<T>(args); });
                         },
                     .workspace_bytes = grad_workspace,
                     .inplace = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
