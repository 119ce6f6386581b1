// LayerNormalization over the trailing dimensions from `axis`, per row of n elements:
//   mean = sum x / n,  inv = 1 / sqrt(sum (x - mean)^2 / n + epsilon),  y = (x - mean) inv scale +
//   bias
// LayerNormalizationGrad, with h = (x - mean) inv and g = dy scale:
//   dx = inv (g - mean(g) - h mean(g h)),  dscale = sum_rows dy h,  dbias = sum_rows dy
// SkipLayerNormalization: sum = x + skip, rounded to their type, then as above.
// Method: two passes over a row in cache, or over sixteen short ones (short_rows.h); column sums as
// partial sums of blocks of rows.
// Bytes moved: x and y once (forward); dy, x and dx once (gradient).
#include "kernels/cpu/layer_norm.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class T>
void normalize_row(const T* x, const T* scale, const T* bias, int64_t n, Statistics<ComputeOf<T>> s,
                   T* y) {
  using C = ComputeOf<T>;
  C buffer[kRowChunk], scale_buffer[kRowChunk], bias_buffer[kRowChunk];
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* values = computed_row(x + at, count, buffer);
    C* out = writable_row(y + at, buffer);
    const C* factors = scale ? computed_row(scale + at, count, scale_buffer) : nullptr;
    const C* terms = bias ? computed_row(bias + at, count, bias_buffer) : nullptr;
    if (factors && terms) {
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i)
        out[i] = normalized(values[i], s.mean, s.inv_std_dev) * factors[i] + terms[i];
    } else {
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) {
        const C h = normalized(values[i], s.mean, s.inv_std_dev);
        out[i] = factors ? h * factors[i] : terms ? h + terms[i] : h;
      }
    }
    store_row(y + at, out, count);
  });
}

// Operands and outputs of the two forward ops; skip and sum are null for LayerNormalization.
template <class T>
struct Forward {
  const T *x, *skip, *scale, *bias;
  T* y;
  ComputeOf<T>*mean, *inv_std_dev;
  T* sum;
};

// sum = x + skip for `count` elements from `at` on; returns what is to be normalized.
template <class T>
const T* add_skip(const Forward<T>& f, int64_t at, int64_t count) {
  const T* x = f.x + at;
  if (!f.skip) return x;
  T* sum = (f.sum ? f.sum : f.y) + at;
  const T* skip = f.skip + at;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) sum[i] = stored<T>(computed(x[i]) + computed(skip[i]));
  return sum;
}

template <class T>
void forward_short_rows(const Forward<T>& f, int64_t begin, int64_t end, int64_t n,
                        double epsilon) {
  float scale[kShortRow], bias[kShortRow];
  if (f.scale) read_short(f.scale, n, scale);
  if (f.bias) read_short(f.bias, n, bias);
  for_each_rows_together(end - begin, [&](int64_t first, int64_t rows) {
    const int64_t row = begin + first;
    RowColumns columns(rows, n);
    columns.load(add_skip(f, row * n, rows * n));
    const RowStatistics s = short_row_statistics(columns, n, epsilon);
    for (int64_t j = 0; j < n; ++j) {
      RowLanes h = (columns[j] - s.mean) * s.inv_std_dev;
      if (f.scale) h = h * RowLanes(scale[j]);
      if (f.bias) h = h + RowLanes(bias[j]);
      columns.set(j, h);
    }
    columns.store(f.y + row * n);
    // Last, since rows of one element may share their storage with the statistics.
    if (f.mean) s.mean.store(f.mean + row, rows);
    if (f.inv_std_dev) s.inv_std_dev.store(f.inv_std_dev + row, rows);
  });
}

template <class T>
void forward(const KernelArgs& args, const Forward<T>& f) {
  const NormShape shape = norm_shape(args.facts.outputs[0].layout.sizes, args.facts.node().attrs);
  const double epsilon = args.facts.node().attrs.number("epsilon", 1e-5);
  const int64_t n = shape.columns;
  parallel_ranges(args.context, shape.rows, grain_for(2 * n), [&](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<ComputeOf<T>, float>)
      if (is_short(n)) return forward_short_rows(f, begin, end, n, epsilon);
    for (int64_t row = begin; row < end; ++row) {
      const T* x = add_skip(f, row * n, n);
      const Statistics<ComputeOf<T>> s = row_statistics(x, n, epsilon);
      normalize_row(x, f.scale, f.bias, n, s, f.y + row * n);
      // Last, since rows of one element may share their storage with the statistics.
      if (f.mean) f.mean[row] = s.mean;
      if (f.inv_std_dev) f.inv_std_dev[row] = s.inv_std_dev;
    }
  });
}

void run_layer_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    using C = ComputeOf<T>;
    forward<T>(args, {args.in[0].as<T>(), nullptr, data_or_null<T>(args.in, 1),
                      data_or_null<T>(args.in, 2), args.out[0].as<T>(),
                      data_or_null<C>(args.out, 1), data_or_null<C>(args.out, 2), nullptr});
  });
}

void run_skip_layer_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    using C = ComputeOf<T>;
    forward<T>(args,
               {args.in[0].as<T>(), args.in[1].as<T>(), data_or_null<T>(args.in, 2),
                data_or_null<T>(args.in, 3), args.out[0].as<T>(), data_or_null<C>(args.out, 1),
                data_or_null<C>(args.out, 2), data_or_null<T>(args.out, 3)});
  });
}

// --- gradient ------------------------------------------------------------------------------------
template <class T>
struct Backward {
  using C = ComputeOf<T>;
  const T *dy, *x, *scale;
  const C *mean, *inv_std_dev;
  T* dx;
};

// What a pass over a row adds up.
struct GradientSums {
  double g = 0, gh = 0;
};

// Adds dy h and dy to the column sums, g and g h to the sums of the row; in floats, a vector at a
// time, because the compiler would make a pass of each sum.
inline void add_gradients(const float* dy, const float* x, const float* scale, int64_t count,
                          Statistics<float> s, float* dscale, float* dbias, GradientSums& sums) {
  const FloatVec mean(s.mean), inv(s.inv_std_dev);
  const auto add = [&](int64_t i, FloatVec d, FloatVec v, FloatVec factor, FloatVec old_scale,
                       FloatVec old_bias, const auto& store) {
    const FloatVec h = normalized(v, mean, inv), g = d * factor;
    store(dscale + i, old_scale + d * h);
    store(dbias + i, old_bias + d);
    return std::pair(g, g * h);
  };
  const auto add_whole = [&](int64_t i) {
    return add(i, FloatVec::load(dy + i), FloatVec::load(x + i),
               scale ? FloatVec::load(scale + i) : FloatVec(1.0f), FloatVec::load(dscale + i),
               FloatVec::load(dbias + i), [](float* to, FloatVec v) { v.store(to); });
  };
  Lanes32 g(0.0f), gh(0.0f);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (int k = 0; k < Lanes32::kVectors; ++k) {
      const auto [left, right] = add_whole(i + k * FloatVec::kCount);
      g.v[k] = g.v[k] + left;
      gh.v[k] = gh.v[k] + right;
    }
  }
  Lanes32 all_g = g, all_gh = gh;  // copies, since variable positions keep arrays from registers
  for_each_tail_vector(i, count, [&](int k, int64_t at, int64_t lanes) {
    std::pair<FloatVec, FloatVec> terms;
    if (lanes == FloatVec::kCount) {
      terms = add_whole(at);
    } else {  // what lies behind the row is 0
      terms = add(at, FloatVec::load(dy + at, lanes), FloatVec::load(x + at, lanes),
                  scale ? FloatVec::load(scale + at, lanes) : FloatVec(1.0f),
                  FloatVec::load(dscale + at, lanes), FloatVec::load(dbias + at, lanes),
                  [&](float* to, FloatVec v) { v.store(to, lanes); });
      terms = {masked(first_lanes(lanes), terms.first), masked(first_lanes(lanes), terms.second)};
    }
    all_g.v[k] = all_g.v[k] + terms.first;
    all_gh.v[k] = all_gh.v[k] + terms.second;
  });
  sums.g += all_g.sum();
  sums.gh += all_gh.sum();
}
inline void add_gradients(const double* dy, const double* x, const double* scale, int64_t count,
                          Statistics<double> s, double* dscale, double* dbias, GradientSums& sums) {
  const auto h_of = [&](double v) { return normalized(v, s.mean, s.inv_std_dev); };
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) dscale[i] += dy[i] * h_of(x[i]);
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) dbias[i] += dy[i];
  if (scale) {
    sums.g += row_sum(
        count, [](double d, double f) { return d * f; }, dy, scale);
    sums.gh += row_sum(
        count, [&](double d, double f, double v) { return d * f * h_of(v); }, dy, scale, x);
  } else {
    sums.g += row_sum(
        count, [](double d) { return d; }, dy);
    sums.gh += row_sum(
        count, [&](double d, double v) { return d * h_of(v); }, dy, x);
  }
}

// Adds a row to the column sums and writes its dx.
template <class T>
void backward_row(const Backward<T>& b, int64_t row, int64_t n, ComputeOf<T>* dscale,
                  ComputeOf<T>* dbias) {
  using C = ComputeOf<T>;
  C dy_buffer[kRowChunk], x_buffer[kRowChunk], scale_buffer[kRowChunk];
  const C mean = b.mean[row], inv = b.inv_std_dev[row];
  const T *dy_row = b.dy + row * n, *x_row = b.x + row * n;
  const auto scale_at = [&](int64_t at, int64_t count) {
    return b.scale ? computed_row(b.scale + at, count, scale_buffer) : nullptr;
  };
  GradientSums sums;
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    add_gradients(computed_row(dy_row + at, count, dy_buffer),
                  computed_row(x_row + at, count, x_buffer), scale_at(at, count), count,
                  {mean, inv}, dscale + at, dbias + at, sums);
  });
  const C mean_g = static_cast<C>(sums.g / static_cast<double>(n));
  const C mean_gh = static_cast<C>(sums.gh / static_cast<double>(n));
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* dy = computed_row(dy_row + at, count, dy_buffer);
    const C* x = computed_row(x_row + at, count, x_buffer);
    C* out = writable_row(b.dx + row * n + at, dy_buffer);
    if (const C* scale = scale_at(at, count)) {
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i)
        out[i] = normalized_gradient(dy[i] * scale[i], normalized(x[i], mean, inv), inv, mean_g,
                                     mean_gh);
    } else {
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i)
        out[i] = normalized_gradient(dy[i], normalized(x[i], mean, inv), inv, mean_g, mean_gh);
    }
    store_row(b.dx + row * n + at, out, count);
  });
}

// The same for rows [begin, end) of at most kShortLightRow floats each; the column sums are added
// up over every sixteenth row first.
template <class T>
void backward_short_rows(const Backward<T>& b, int64_t begin, int64_t end, int64_t n, float* dscale,
                         float* dbias) {
  float scale[kShortLightRow];
  RowLanes scale_sums[kShortLightRow], bias_sums[kShortLightRow];
  if (b.scale) read_short(b.scale, n, scale);
  std::fill(scale_sums, scale_sums + n, RowLanes(0.0f));
  std::fill(bias_sums, bias_sums + n, RowLanes(0.0f));
  for_each_rows_together(end - begin, [&](int64_t first, int64_t rows) {
    const int64_t row = begin + first;
    const RowLanes mean = RowLanes::load(b.mean + row, rows);
    const RowLanes inv = RowLanes::load(b.inv_std_dev + row, rows);
    RowColumns dy(rows, n), x(rows, n);
    dy.load(b.dy + row * n);
    x.load(b.x + row * n);
    RowDoubles sum_g(0.0), sum_gh(0.0);
    for (int64_t j = 0; j < n; ++j) {
      const RowLanes d = dy[j], h = (x[j] - mean) * inv;
      scale_sums[j] = scale_sums[j] + d * h;
      bias_sums[j] = bias_sums[j] + d;
      const RowLanes g = b.scale ? d * RowLanes(scale[j]) : d;
      dy.set(j, g);
      x.set(j, h);
      sum_g = sum_g + RowDoubles(g);
      sum_gh = sum_gh + RowDoubles(g * h);
    }
    const RowLanes mean_g = mean_of_rows(sum_g, n), mean_gh = mean_of_rows(sum_gh, n);
    for (int64_t j = 0; j < n; ++j) dy.set(j, inv * (dy[j] - mean_g - x[j] * mean_gh));
    dy.store(b.dx + row * n);
  });
  for (int64_t j = 0; j < n; ++j) {
    dscale[j] = sum_of_rows(scale_sums[j]);
    dbias[j] = sum_of_rows(bias_sums[j]);
  }
}

size_t grad_workspace(const StepFacts& facts) {
  const NormShape shape = norm_shape(facts.inputs[1].layout.sizes, facts.node().attrs);
  const size_t width = facts.inputs[1].dtype == DType::Float64 ? 8 : 4;
  return static_cast<size_t>(row_blocks(shape.rows) * 2 * shape.columns) * width;
}

template <class T>
void backward(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const NormShape shape = norm_shape(args.facts.inputs[1].layout.sizes, args.facts.node().attrs);
  const int64_t n = shape.columns, blocks = row_blocks(shape.rows);
  const int64_t block_rows = rows_per_block(shape.rows);
  C* partials = static_cast<C*>(args.workspace);
  const Backward<T> b{args.in[0].as<T>(), args.in[1].as<T>(), args.in[2].as<T>(),
                      args.in[3].as<C>(), args.in[4].as<C>(), args.out[0].as<T>()};
  parallel_ranges(args.context, blocks, grain_for(block_rows * n), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      C* dscale = partials + block * 2 * n;
      const int64_t first = block * block_rows, last = std::min(shape.rows, first + block_rows);
      if constexpr (std::is_same_v<C, float>) {
        if (is_short(n, kShortLightRow)) {
          backward_short_rows(b, first, last, n, dscale, dscale + n);
          continue;
        }
      }
      std::fill(dscale, dscale + 2 * n, C(0));
      for (int64_t row = first; row < last; ++row) backward_row(b, row, n, dscale, dscale + n);
    }
  });
  for (size_t k = 0; k < 2; ++k)
    if (T* out = data_or_null<T>(args.out, k + 1))
      reduce_partials<T>(args.context, partials + static_cast<int64_t>(k) * n, blocks, 2 * n, n,
                         out);
}

void run_layer_norm_grad(const KernelArgs& args) {
  dispatch_float(args.in[1].dtype, [&]<class T> { backward<T>(args); });
}

REGISTER_CPU_KERNEL({.op = "LayerNormalization",
                     .name = "layer_norm_cpu",
                     .dtypes = kAllFloats,
                     .run = run_layer_norm,
                     .inplace = true});
REGISTER_CPU_KERNEL({.op = "SkipLayerNormalization",
                     .name = "skip_layer_norm_cpu",
                     .dtypes = kAllFloats,
                     .run = run_skip_layer_norm,
                     .inplace = true});
REGISTER_CPU_KERNEL({.op = "LayerNormalizationGrad",
                     .name = "layer_norm_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_layer_norm_grad,
                     .workspace_bytes = grad_workspace,
                     .inplace = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
