// LayerNormalization over the trailing dimensions from `axis`, per row of n elements:
//   mean = sum x / n,  inv = 1 / sqrt(sum (x - mean)^2 / n + epsilon),  y = (x - mean) inv scale +
//   bias
// LayerNormalizationGrad, with h = (x - mean) inv and g = dy scale:
//   dx = inv (g - mean(g) - h mean(g h)),  dscale = sum_rows dy h,  dbias = sum_rows dy
// SkipLayerNormalization: sum = x + skip, rounded to their type, then as above.
// Method: two passes over a row in cache; column sums as partial sums of blocks of rows.
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

template <class T>
void forward(const KernelArgs& args, const Forward<T>& f) {
  const NormShape shape = norm_shape(args.facts.outputs[0].layout.sizes, args.facts.node().attrs);
  const double epsilon = args.facts.node().attrs.number("epsilon", 1e-5);
  const int64_t n = shape.columns;
  parallel_ranges(args.context, shape.rows, grain_for(2 * n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = f.x + row * n;
      if (f.skip) {
        T* sum = (f.sum ? f.sum : f.y) + row * n;
        const T* skip = f.skip + row * n;
        ORTM_SIMD
        for (int64_t i = 0; i < n; ++i) sum[i] = stored<T>(computed(x[i]) + computed(skip[i]));
        x = sum;
      }
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

// Pieces shorter than this are added up one by one, which is less work than partial results.
constexpr int64_t kShortRow = 32;

// Adds a row to the column sums and writes its dx.
template <class T>
void backward_row(const Backward<T>& b, int64_t row, int64_t n, ComputeOf<T>* dscale,
                  ComputeOf<T>* dbias) {
  using C = ComputeOf<T>;
  C dy_buffer[kRowChunk], x_buffer[kRowChunk], scale_buffer[kRowChunk], g[kRowChunk];
  const C mean = b.mean[row], inv = b.inv_std_dev[row];
  const T *dy_row = b.dy + row * n, *x_row = b.x + row * n;
  double sum_g = 0, sum_gh = 0;
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* dy = computed_row(dy_row + at, count, dy_buffer);
    const C* x = computed_row(x_row + at, count, x_buffer);
    C* h = x_buffer;
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) h[i] = normalized(x[i], mean, inv);
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) dscale[at + i] += dy[i] * h[i];
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) dbias[at + i] += dy[i];
    const C* gradient = dy;
    if (b.scale) {
      const C* scale = computed_row(b.scale + at, count, scale_buffer);
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) g[i] = dy[i] * scale[i];
      gradient = g;
    }
    if (count < kShortRow) {
      for (int64_t i = 0; i < count; ++i) {
        sum_g += static_cast<double>(gradient[i]);
        sum_gh += static_cast<double>(gradient[i] * h[i]);
      }
      return;
    }
    sum_g += row_sum(
        count, [](auto v) { return v; }, gradient);
    sum_gh += row_sum(
        count, [](auto v, auto w) { return v * w; }, gradient, h);
  });
  const C mean_g = static_cast<C>(sum_g / static_cast<double>(n));
  const C mean_gh = static_cast<C>(sum_gh / static_cast<double>(n));
  for_each_chunk(n, [&](int64_t at, int64_t count) {
    const C* dy = computed_row(dy_row + at, count, dy_buffer);
    const C* x = computed_row(x_row + at, count, x_buffer);
    C* out = writable_row(b.dx + row * n + at, g);
    if (b.scale) {
      const C* scale = computed_row(b.scale + at, count, scale_buffer);
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
      std::fill(dscale, dscale + 2 * n, C(0));
      const int64_t last = std::min(shape.rows, (block + 1) * block_rows);
      for (int64_t row = block * block_rows; row < last; ++row)
        backward_row(b, row, n, dscale, dscale + n);
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
