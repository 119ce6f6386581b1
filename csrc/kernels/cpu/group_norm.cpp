// GroupNormalization of x [N, C, ...] in G groups of neighbouring channels, over m elements each:
//   mean = sum x / m,  inv = 1 / sqrt(sum (x - mean)^2 / m + epsilon),
//   y = (x - mean) inv scale + bias
// GroupNormalizationGrad, with a = sum dy and b = sum dy (x - mean) over the pixels of a channel:
//   dscale = sum_images inv b,  dbias = sum_images a,
//   dx = inv (dy scale - sum_group(scale a) / m - (x - mean) inv^2 sum_group(scale b) / m)
// Method: row-major, a group is one row, which stays in cache forward (sixteen short ones at a
// time); channels-last, pixels are rows of channels. Sums continue in double. Bytes moved: x twice
// and y once (forward; three times channels-last); dy and x twice and dx once (gradient).
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/layer_norm.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct GroupShape {
  int64_t images, channels, pixels, groups;
  bool pixel_major;  // channels-last

  GroupShape(const Layout& x, const Attrs& attrs)
      : images(x.sizes[0]),
        channels(x.sizes[1]),
        pixels(1),
        groups(attrs.integer("num_groups")),
        pixel_major(is_channels_last(x) && !is_contiguous(x)) {
    for (size_t d = 2; d < x.sizes.size(); ++d) pixels *= x.sizes[d];
  }
  int64_t group_channels() const { return channels / groups; }
  double group_elements() const { return static_cast<double>(group_channels() * pixels); }
  PixelRows rows() const { return {images, pixels, channels}; }
};

// What the two forward kernels work on.
template <class T>
struct Forward {
  using C = ComputeOf<T>;
  GroupShape shape;
  double epsilon;
  const T *x, *scale, *bias;
  T* y;
  C *mean, *inv;

  explicit Forward(const KernelArgs& args)
      : shape(args.facts.inputs[0].layout, args.facts.node().attrs),
        epsilon(args.facts.node().attrs.number("epsilon")),
        x(args.in[0].as<T>()),
        scale(data_or_null<T>(args.in, 1)),
        bias(data_or_null<T>(args.in, 2)),
        y(args.out[0].as<T>()),
        mean(args.out[1].as<C>()),
        inv(args.out[2].as<C>()) {}
};

template <class C, class T>
C factor_of(const T* scale, int64_t channel) {
  return scale ? static_cast<C>(computed(scale[channel])) : C(1);
}
template <class C, class T>
C term_of(const T* bias, int64_t channel) {
  return bias ? static_cast<C>(computed(bias[channel])) : C(0);
}

template <class T>
void normalize_plane(const T* x, T* y, int64_t pixels, Statistics<ComputeOf<T>> s,
                     ComputeOf<T> factor, ComputeOf<T> term) {
  using C = ComputeOf<T>;
  C buffer[kRowChunk];
  for_each_chunk(pixels, [&](int64_t at, int64_t count) {
    const C* values = computed_row(x + at, count, buffer);
    C* out = writable_row(y + at, buffer);
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i)
      out[i] = normalized(values[i], s.mean, s.inv_std_dev) * factor + term;
    store_row(y + at, out, count);
  });
}

// Groups [begin, end), counted through all images, of at most kShortRow floats each.
template <class T>
void forward_short_groups(const Forward<T>& f, int64_t begin, int64_t end) {
  const GroupShape& g = f.shape;
  const int64_t d = g.group_channels(), row = d * g.pixels;
  for_each_rows_together(end - begin, [&](int64_t at, int64_t count) {
    const int64_t first = begin + at;
    RowColumns columns(count, row);
    columns.load(f.x + first * row);
    const RowStatistics s = short_row_statistics(columns, row, f.epsilon);
    for (int64_t k = 0; k < d; ++k) {
      float factors[kRowsTogether] = {}, terms[kRowsTogether] = {};
      for (int64_t i = 0; i < count; ++i) {
        const int64_t channel = (first + i) % g.groups * d + k;
        factors[i] = factor_of<float>(f.scale, channel);
        terms[i] = term_of<float>(f.bias, channel);
      }
      const RowLanes factor = RowLanes::load(factors), term = RowLanes::load(terms);
      for (int64_t j = k * g.pixels; j < (k + 1) * g.pixels; ++j)
        columns.set(j, (columns[j] - s.mean) * s.inv_std_dev * factor + term);
    }
    columns.store(f.y + first * row);
    // Last, since groups of one element may share their storage with these.
    s.mean.store(f.mean + first, count);
    s.inv_std_dev.store(f.inv + first, count);
  });
}

template <class T>
void forward_row_major(const KernelArgs& args, const Forward<T>& f) {
  using C = ComputeOf<T>;
  const GroupShape& g = f.shape;
  const int64_t row = g.group_channels() * g.pixels;
  parallel_ranges(
      args.context, g.images * g.groups, grain_for(2 * row), [&](int64_t begin, int64_t end) {
        if constexpr (std::is_same_v<C, float>)
          if (is_short(row)) return forward_short_groups(f, begin, end);
        for (int64_t i = begin; i < end; ++i) {
          const Statistics<C> s = row_statistics(f.x + i * row, row, f.epsilon);
          for (int64_t k = 0; k < g.group_channels(); ++k) {
            const int64_t channel = i % g.groups * g.group_channels() + k;
            const int64_t at = i * row + k * g.pixels;
            normalize_plane(f.x + at, f.y + at, g.pixels, s, factor_of<C>(f.scale, channel),
                            term_of<C>(f.bias, channel));
          }
          // Last, since groups of one element may share their storage with these.
          f.mean[i] = s.mean;
          f.inv[i] = s.inv_std_dev;
        }
      });
}

/// out(group) of the sum over the group's channels of sums[channel], for every image.
template <class Out>
void for_each_group(const GroupShape& g, const double* sums, const Out& out) {
  for (int64_t i = 0; i < g.images * g.groups; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < g.group_channels(); ++k) sum += sums[i * g.group_channels() + k];
    out(i, sum);
  }
}

// Statistics are spread over the channels, so that loops over channels vectorize.
template <class T>
void forward_pixel_major(const KernelArgs& args, const Forward<T>& f) {
  using C = ComputeOf<T>;
  const GroupShape& g = f.shape;
  const int64_t n = g.channels, d = g.group_channels(), all = g.images * n;
  auto* sums = static_cast<double*>(args.workspace);
  C* mean =
      reinterpret_cast<C*>(static_cast<char*>(args.workspace) + column_sums_bytes<1>(g.rows()));
  C* inv = mean + all;
  column_sums<1>(args.context, g.rows(), sums, [&](int64_t) {
    return [x = f.x, n](int64_t row, int64_t c) { return std::array{computed(x[row * n + c])}; };
  });
  for_each_group(g, sums, [&](int64_t i, double sum) {
    const C value = static_cast<C>(sum / g.group_elements());
    std::fill_n(mean + i * d, d, value);
    f.mean[i] = value;
  });
  column_sums<1>(args.context, g.rows(), sums, [&](int64_t image) {
    return [x = f.x, n, own = mean + image * n](int64_t row, int64_t c) {
      const C deviation = computed(x[row * n + c]) - own[c];
      return std::array{deviation * deviation};
    };
  });
  for_each_group(g, sums, [&](int64_t i, double sum) {
    const C value = static_cast<C>(1.0 / std::sqrt(sum / g.group_elements() + f.epsilon));
    std::fill_n(inv + i * d, d, value);
    f.inv[i] = value;
  });
  parallel_ranges(
      args.context, g.images * g.pixels, grain_for(2 * n), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const C *own_mean = mean + row / g.pixels * n, *own_inv = inv + row / g.pixels * n;
          const T* from = f.x + row * n;
          T* to = f.y + row * n;
          ORTM_SIMD
          for (int64_t c = 0; c < n; ++c)
            to[c] =
                stored<T>(normalized(static_cast<C>(computed(from[c])), own_mean[c], own_inv[c]) *
                              factor_of<C>(f.scale, c) +
                          term_of<C>(f.bias, c));
        }
      });
}

void group_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    const Forward<T> f(args);
    f.shape.pixel_major ? forward_pixel_major(args, f) : forward_row_major(args, f);
  });
}

size_t forward_workspace(const StepFacts& facts) {
  const GroupShape g(facts.inputs[0].layout, facts.node().attrs);
  if (!g.pixel_major) return 0;
  const size_t width = facts.inputs[0].dtype == DType::Float64 ? 8 : 4;
  return column_sums_bytes<1>(g.rows()) + 2 * static_cast<size_t>(g.images * g.channels) * width;
}

// --- gradient ------------------------------------------------------------------------------------
template <class T>
struct Backward {
  using C = ComputeOf<T>;
  GroupShape shape;
  const T *dy, *x, *scale;
  const C *mean, *inv;
  T* dx;         // null if nobody reads it
  double* sums;  // [images, 2, channels]: of dy and of dy (x - mean), soon inv times that
  // Each [images, channels]: dx = dy factor - shift - (x - center) slope.
  C *center, *factor, *shift, *slope;

  explicit Backward(const KernelArgs& args)
      : shape(args.facts.inputs[1].layout, args.facts.node().attrs),
        dy(args.in[0].as<T>()),
        x(args.in[1].as<T>()),
        scale(args.in[2].as<T>()),
        mean(args.in[3].as<C>()),
        inv(args.in[4].as<C>()),
        dx(data_or_null<T>(args.out, 0)),
        sums(static_cast<double*>(args.workspace)) {
    const int64_t all = shape.images * shape.channels;
    center = reinterpret_cast<C*>(static_cast<char*>(args.workspace) +
                                  column_sums_bytes<2>(shape.rows()));
    factor = center + all;
    shift = factor + all;
    slope = shift + all;
  }
};

// Sums of dy and of dy (x - mean) over each plane.
template <class T>
void sum_planes(const KernelArgs& args, const Backward<T>& b) {
  using C = ComputeOf<T>;
  using V = std::conditional_t<std::is_same_v<C, float>, FloatVec, double>;
  const int64_t n = b.shape.channels, pixels = b.shape.pixels;
  const auto sum_plane = [&](int64_t plane) {
    C dy_buffer[kRowChunk], x_buffer[kRowChunk];
    const V center(b.center[plane]);
    double sum = 0, product = 0;
    for_each_chunk(pixels, [&](int64_t at, int64_t count) {
      const C* dy = computed_row(b.dy + plane * pixels + at, count, dy_buffer);
      const C* x = computed_row(b.x + plane * pixels + at, count, x_buffer);
      sum += row_sum(
          count, [](auto v) { return v; }, dy);
      product += row_sum(
          count, [&](V v, V w) { return v * (w - center); }, dy, x);
    });
    double* own = b.sums + plane / n * 2 * n + plane % n;
    own[0] = sum;
    own[n] = product;
  };
  parallel_ranges(args.context, b.shape.images * n, grain_for(2 * pixels),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t plane = begin; plane < end; ++plane) sum_plane(plane);
                  });
}

template <class T>
void sum_pixel_rows(const KernelArgs& args, const Backward<T>& b) {
  const int64_t n = b.shape.channels;
  column_sums<2>(args.context, b.shape.rows(), b.sums, [&](int64_t image) {
    return [dy = b.dy, x = b.x, n, center = b.center + image * n](int64_t row, int64_t c) {
      const auto g = computed(dy[row * n + c]);
      return std::array{g, g * (computed(x[row * n + c]) - center[c])};
    };
  });
}

// From the sums: what each channel of each image needs for its dx. From here on nobody reads the
// statistics, whose storage dx may take.
template <class T>
void set_coefficients(const Backward<T>& b) {
  using C = ComputeOf<T>;
  const GroupShape& g = b.shape;
  const int64_t d = g.group_channels();
  for (int64_t i = 0; i < g.images * g.groups; ++i) {
    double *sums = b.sums + i / g.groups * 2 * g.channels, *products = sums + g.channels;
    const int64_t first = i % g.groups * d;
    const auto inv = static_cast<double>(b.inv[i]);
    double sum = 0, product = 0;
    for (int64_t c = first; c < first + d; ++c) {
      const auto scale = static_cast<double>(factor_of<C>(b.scale, c));
      products[c] *= inv;
      sum += scale * sums[c];
      product += scale * products[c];
    }
    const C shift = static_cast<C>(inv * sum / g.group_elements());
    const C slope = static_cast<C>(inv * inv * product / g.group_elements());
    for (int64_t k = 0; k < d; ++k) {
      b.factor[i * d + k] = b.inv[i] * factor_of<C>(b.scale, first + k);
      b.shift[i * d + k] = shift;
      b.slope[i * d + k] = slope;
    }
  }
}

template <class T>
void write_planes(const KernelArgs& args, const Backward<T>& b) {
  using C = ComputeOf<T>;
  const int64_t pixels = b.shape.pixels;
  const auto write_plane = [&](int64_t plane) {
    C dy_buffer[kRowChunk], x_buffer[kRowChunk];
    const C center = b.center[plane], factor = b.factor[plane];
    const C shift = b.shift[plane], slope = b.slope[plane];
    for_each_chunk(pixels, [&](int64_t at, int64_t count) {
      const int64_t first = plane * pixels + at;
      const C* dy = computed_row(b.dy + first, count, dy_buffer);
      const C* x = computed_row(b.x + first, count, x_buffer);
      C* out = writable_row(b.dx + first, dy_buffer);
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) out[i] = dy[i] * factor - shift - (x[i] - center) * slope;
      store_row(b.dx + first, out, count);
    });
  };
  parallel_ranges(args.context, b.shape.images * b.shape.channels, grain_for(2 * pixels),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t plane = begin; plane < end; ++plane) write_plane(plane);
                  });
}

template <class T>
void write_pixel_rows(const KernelArgs& args, const Backward<T>& b) {
  using C = ComputeOf<T>;
  const int64_t n = b.shape.channels, pixels = b.shape.pixels;
  parallel_ranges(args.context, b.shape.images * pixels, grain_for(2 * n),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = begin; row < end; ++row) {
                      const int64_t own = row / pixels * n;
                      const C *center = b.center + own, *factor = b.factor + own;
                      const C *shift = b.shift + own, *slope = b.slope + own;
                      const T *dy = b.dy + row * n, *x = b.x + row * n;
                      T* dx = b.dx + row * n;
                      ORTM_SIMD
                      for (int64_t c = 0; c < n; ++c)
                        dx[c] = stored<T>(computed(dy[c]) * factor[c] - shift[c] -
                                          (computed(x[c]) - center[c]) * slope[c]);
                    }
                  });
}

// Written last, as they may take the storage of scale.
template <class T>
void write_affine_gradients(const KernelArgs& args, const Backward<T>& b) {
  using C = ComputeOf<T>;
  const int64_t n = b.shape.channels;
  for (size_t output = 1; output <= 2; ++output) {
    T* out = data_or_null<T>(args.out, output);
    if (!out) continue;
    const double* sums = b.sums + (output == 1 ? n : 0);
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0;
      for (int64_t image = 0; image < b.shape.images; ++image) sum += sums[image * 2 * n + c];
      out[c] = stored<T>(static_cast<C>(sum));
    }
  }
}

void group_norm_grad(const KernelArgs& args) {
  dispatch_float(args.in[1].dtype, [&]<class T> {
    const Backward<T> b(args);
    const int64_t d = b.shape.group_channels();
    for (int64_t i = 0; i < b.shape.images * b.shape.groups; ++i)
      std::fill_n(b.center + i * d, d, b.mean[i]);
    b.shape.pixel_major ? sum_pixel_rows(args, b) : sum_planes(args, b);
    set_coefficients(b);
    if (b.dx) b.shape.pixel_major ? write_pixel_rows(args, b) : write_planes(args, b);
    write_affine_gradients(args, b);
  });
}

size_t grad_workspace(const StepFacts& facts) {
  const GroupShape g(facts.inputs[1].layout, facts.node().attrs);
  const size_t width = facts.inputs[1].dtype == DType::Float64 ? 8 : 4;
  return column_sums_bytes<2>(g.rows()) + 4 * static_cast<size_t>(g.images * g.channels) * width;
}

// --- registration --------------------------------------------------------------------------------
// Of x, behind dy in the gradient. Torch's kernel says what is wrong with groups.
template <size_t x>
Reason uneven_groups(const StepFacts& facts) {
  const int64_t channels = facts.inputs[x].layout.sizes[1];
  if (channels % facts.node().attrs.integer("num_groups") == 0) return {};
  return "the groups do not divide the channels";
}

template <size_t x>
Reason not_channels_last(const StepFacts& facts) {
  for (size_t i = 0; i <= x; ++i)
    if (!is_channels_last(facts.inputs[i].layout)) return "the operands are not channels-last";
  return uneven_groups<x>(facts);
}

std::vector<Sizes> like_input(const StepFacts& facts) { return {facts.inputs[0].layout.strides}; }

REGISTER_CPU_KERNEL({.op = "GroupNormalization",
                     .name = "group_norm_channels_last_cpu",
                     .dtypes = kAllFloats,
                     .run = group_norm,
                     .unsupported = not_channels_last<0>,
                     .workspace_bytes = forward_workspace,
                     .output_strides = like_input,
                     .input_rules = {LayoutRule::MemoryFormat},
                     .inplace = true,
                     .priority = 2});
REGISTER_CPU_KERNEL({.op = "GroupNormalization",
                     .name = "group_norm_cpu",
                     .dtypes = kAllFloats,
                     .run = group_norm,
                     .unsupported = uneven_groups<0>,
                     .inplace = true,
                     .priority = 1});
REGISTER_CPU_KERNEL({.op = "GroupNormalizationGrad",
                     .name = "group_norm_grad_channels_last_cpu",
                     .dtypes = kAllFloats,
                     .run = group_norm_grad,
                     .unsupported = not_channels_last<1>,
                     .workspace_bytes = grad_workspace,
                     .output_strides = like_input,
                     .input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat},
                     .leaves_out_unused = true,
                     .inplace = true,
                     .priority = 2});
REGISTER_CPU_KERNEL({.op = "GroupNormalizationGrad",
                     .name = "group_norm_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = group_norm_grad,
                     .unsupported = uneven_groups<1>,
                     .workspace_bytes = grad_workspace,
                     .leaves_out_unused = true,
                     .inplace = true,
                     .priority = 1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
