// MaxPool of x [N, C, H, W]: y = the largest element of each window, its place in the window
// (kernels/pool.h) and, if asked for, its index in the plane. NaN counts as largest; of equal
// elements the first is taken. MaxPoolGrad: dx = sum of dy over the windows whose place it is.
// Method: row-major, a row of outputs at a time, place by place; channels-last, pixels are rows of
// channels, and the gradient gathers from the windows around a pixel. Values alone, of float32,
// stay in registers until they are found (pool_bands.h, pixel_windows.h). Bytes moved: x, y and
// places once (forward); dy, places and dx once (gradient).
#include "kernels/pool.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/pixel_windows.h"
#include "kernels/cpu/pool_bands.h"
#include "kernels/cpu/pool_windows.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// --- forward -------------------------------------------------------------------------------------
struct MaxPooling {
  PoolShape shape;
  PatchShape windows;
  BandPlan<LargestFold> bands;

  explicit MaxPooling(const StepFacts& facts)
      : shape(facts.inputs[0].layout.sizes, facts.outputs[0].layout.sizes, facts.node().attrs),
        windows(pool_windows(facts)),
        bands(shape.rows, shape.columns) {}
};

std::shared_ptr<const void> prepare_pooling(const StepFacts& facts) {
  return std::make_shared<const MaxPooling>(facts);
}

/// The largest elements so far of a row of windows.
template <class C>
struct LargestValues {
  static constexpr bool kHasPlaces = false;
  C values[kRowChunk];

  void clear(int64_t count) { std::fill_n(values, count, -std::numeric_limits<C>::infinity()); }
  /// Elements `step` apart lie at one place of windows [0, count) from `at`.
  template <class T>
  void take(const T* x, int64_t step, int64_t at, int64_t count, int32_t) {
    C* best = values + at;
    for (int64_t i = 0; i < count; ++i) {
      const C value = computed(x[i * step]);
      best[i] = (value > best[i]) | (value != value) ? value : best[i];
    }
  }
  template <class T>
  void store_values(T* y, int64_t count) const {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = stored<T>(values[i]);
  }
};

/// The same and the places of them.
template <class C>
struct Largest {
  static constexpr bool kHasPlaces = true;
  C values[kRowChunk];
  int32_t places[kRowChunk];

  void clear(int64_t count) {
    std::fill_n(values, count, -std::numeric_limits<C>::infinity());
    std::fill_n(places, count, int32_t{kNoPlace});
  }
  /// Elements `step` apart lie at `place` of windows [0, count) from `at`.
  template <class T>
  void take(const T* x, int64_t step, int64_t at, int64_t count, int32_t place) {
    C* best = values + at;
    int32_t* where = places + at;
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) {
      const C value = computed(x[i * step]);
      const bool larger = (value > best[i]) | (value != value) | (where[i] == kNoPlace);
      best[i] = larger ? value : best[i];
      where[i] = larger ? place : where[i];
    }
  }
  template <class T>
  void store_values(T* y, int64_t count) const {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = stored<T>(values[i]);
  }
  void store_places(uint8_t* to, int64_t count) const {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(places[i]);
  }
};

/// Outputs [first, last) of a row read an element at one column of the window: output o reads
/// column o * stride + shift.
struct ColumnReach {
  int64_t shift = 0, first = 0, last = 0;
};

std::vector<ColumnReach> column_reaches(const PoolAxis& columns) {
  std::vector<ColumnReach> reaches(static_cast<size_t>(columns.kernel));
  int64_t shift = -columns.pad;
  for (ColumnReach& reach : reaches) {
    reach = {shift, shift >= 0 ? 0 : ceil_div(-shift, columns.stride),
             ceil_div(columns.in - shift, columns.stride)};
    shift += columns.dilation;
  }
  return reaches;
}

template <class T>
struct Forward {
  const PoolShape& shape;
  std::vector<ColumnReach> reaches;  // by column of the window
  const T* x;
  T* y;  // null, like the next two, if nobody reads it: backward may pool again for the places
  int64_t* indices;
  uint8_t* places;

  Forward(const KernelArgs& args, const MaxPooling& pooling)
      : shape(pooling.shape),
        reaches(column_reaches(shape.columns)),
        x(args.in[0].as<T>()),
        y(args.out[0].as<T>()),
        indices(args.out[1].as<int64_t>()),
        places(args.out[2].as<uint8_t>()) {}

  /// Windows [0, count) of outputs in a row, of which `index(i, place)` tells the index.
  template <class Elements, class Index>
  void store(const Elements& largest, int64_t to, int64_t count, const Index& index) const {
    if (y) largest.store_values(y + to, count);
    if constexpr (Elements::kHasPlaces) {
      if (places) largest.store_places(places + to, count);
      for (int64_t i = 0; indices && i < count; ++i)
        indices[to + i] = index(i, static_cast<uint8_t>(largest.places[i]));
    }
  }
};

/// Row `row` of the outputs of a plane.
template <class T, class Elements>
void pool_row(const Forward<T>& f, int64_t plane, int64_t row, Elements& largest) {
  const PoolAxis &rows = f.shape.rows, &columns = f.shape.columns;
  const WindowPart<int64_t> part = rows.window(row);
  const int64_t to = (plane * rows.out + row) * columns.out;
  for_each_chunk(columns.out, [&](int64_t begin, int64_t count) {
    largest.clear(count);
    for (int64_t k = part.first; k < part.last; ++k) {
      const T* line = f.x + (plane * rows.in + part.start + k * rows.dilation) * columns.in;
      auto place = static_cast<int32_t>(k * columns.kernel);
      for (const ColumnReach& reach : f.reaches) {
        const int64_t first = std::max(begin, reach.first);
        const int64_t last = std::min(begin + count, reach.last);
        if (first < last)
          largest.take(line + first * columns.stride + reach.shift, columns.stride, first - begin,
                       last - first, place);
        ++place;
      }
    }
    f.store(largest, to + begin, count,
            [&](int64_t i, uint8_t place) { return f.shape.index(row, begin + i, place); });
  });
}

/// The channels of output pixel (row, column) of an image.
template <class T, class Elements>
void pool_pixel(const Forward<T>& f, int64_t image, int64_t row, int64_t column,
                Elements& largest) {
  const PoolAxis &rows = f.shape.rows, &columns = f.shape.columns;
  const WindowPart<int64_t> down = rows.window(row), across = columns.window(column);
  const int64_t n = f.shape.channels, to = ((image * rows.out + row) * columns.out + column) * n;
  for_each_chunk(n, [&](int64_t begin, int64_t count) {
    largest.clear(count);
    for (int64_t k = down.first; k < down.last; ++k)
      for (int64_t j = across.first; j < across.last; ++j) {
        const int64_t pixel = (image * rows.in + down.start + k * rows.dilation) * columns.in +
                              across.start + j * columns.dilation;
        largest.take(f.x + pixel * n + begin, 1, 0, count,
                     static_cast<int32_t>(k * columns.kernel + j));
      }
    f.store(largest, to + begin, count,
            [&](int64_t, uint8_t place) { return f.shape.index(row, column, place); });
  });
}

template <template <class> class Elements, class T>
void pool_elements(const KernelArgs& args, const Forward<T>& f) {
  const PoolShape& s = f.shape;
  const int64_t window = s.rows.kernel * s.columns.kernel;
  if (is_pixel_major(args.facts.inputs[0].layout)) {
    parallel_ranges(args.context, s.images * s.rows.out * s.columns.out,
                    grain_for(s.channels * window), [&](int64_t begin, int64_t end) {
                      Elements<ComputeOf<T>> largest;
                      for (int64_t at = begin; at < end; ++at) {
                        const int64_t line = at / s.columns.out;
                        pool_pixel(f, line / s.rows.out, line % s.rows.out, at % s.columns.out,
                                   largest);
                      }
                    });
  } else {
    parallel_ranges(args.context, s.images * s.channels * s.rows.out,
                    grain_for(s.columns.out * window), [&](int64_t begin, int64_t end) {
                      Elements<ComputeOf<T>> largest;
                      for (int64_t at = begin; at < end; ++at)
                        pool_row(f, at / s.rows.out, at % s.rows.out, largest);
                    });
  }
}

/// float32 without indices and places, channels-last.
void pool_pixels(const KernelArgs& args, const MaxPooling& pooling) {
  const PatchShape& windows = pooling.windows;
  const int64_t n = pooling.shape.channels;
  for_each_image_part(args, windows, [&](int64_t image, int64_t begin, int64_t end) {
    const float* x = args.in[0].as<float>() + image * windows.in_pixels * n;
    float* y = args.out[0].as<float>() + (image * windows.pixels + begin) * n;
    for_each_window(windows, n, begin, end,
                    [&](int64_t from, Places places, const PatchSegment&, int64_t) {
                      fold_pixel(x + from, places, LargestFold(), n, y);
                      y += n;
                    });
  });
}

template <class T>
void pool_values(const KernelArgs& args, const MaxPooling& pooling, const Forward<T>& f) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_pixel_major(args.facts.inputs[0].layout)) return pool_pixels(args, pooling);
    if (pooling.bands.is_usable())
      return pool_bands(args, pooling.bands, [](int64_t, int64_t, float*) {});
  }
  pool_elements<LargestValues>(args, f);
}

void max_pool(const KernelArgs& args) {
  const auto& pooling = *static_cast<const MaxPooling*>(args.prepared);
  dispatch_float(args.in[0].dtype, [&]<class T> {
    const Forward<T> f(args, pooling);
    f.indices || f.places ? pool_elements<Largest>(args, f) : pool_values(args, pooling, f);
  });
}

// --- gradient ------------------------------------------------------------------------------------
template <class T>
struct Backward {
  const PoolShape& shape;
  TensorView dy, places, dx;

  explicit Backward(const KernelArgs& args)
      : shape(*static_cast<const PoolShape*>(args.prepared)),
        dy(args.in[0]),
        places(args.in[1]),
        dx(args.out[0]) {}
};

/// A plane of dx; the tensors may have different strides.
template <class T>
void scatter_plane(const Backward<T>& b, int64_t image, int64_t channel, const int64_t* offsets) {
  const PoolAxis &rows = b.shape.rows, &columns = b.shape.columns;
  const auto start = [&](const TensorView& t) {
    return image * t.strides[0] + channel * t.strides[1];
  };
  const int64_t *dy_strides = b.dy.strides, *at_strides = b.places.strides,
                *dx_strides = b.dx.strides;
  const T* dy = b.dy.template as<T>() + start(b.dy);
  const uint8_t* places = b.places.template as<uint8_t>() + start(b.places);
  T* dx = b.dx.template as<T>() + start(b.dx);
  for (int64_t i = 0; i < rows.in; ++i)
    for (int64_t j = 0; j < columns.in; ++j) dx[i * dx_strides[2] + j * dx_strides[3]] = T{};
  for (int64_t i = 0; i < rows.out; ++i) {
    const int64_t line = (i * rows.stride - rows.pad) * dx_strides[2];
    for (int64_t j = 0; j < columns.out; ++j) {
      const uint8_t place = places[i * at_strides[2] + j * at_strides[3]];
      if (place == kNoPlace) continue;
      T& sum = dx[line + (j * columns.stride - columns.pad) * dx_strides[3] + offsets[place]];
      sum = stored<T>(computed(sum) + computed(dy[i * dy_strides[2] + j * dy_strides[3]]));
    }
  }
}

/// sums += dy where places are `place`.
template <class T, class C>
void add_where(int32_t place, const uint8_t* places, const T* dy, int64_t count, C* sums) {
  ORTM_SIMD
  for (int64_t c = 0; c < count; ++c) {
    const C value = computed(dy[c]);
    sums[c] += int32_t{places[c]} == place ? value : C(0);
  }
}

/// The channels of pixel (row, column) of dx.
template <class T>
void gather_pixel(const Backward<T>& b, int64_t image, int64_t row, int64_t column) {
  using C = ComputeOf<T>;
  const PoolAxis &rows = b.shape.rows, &columns = b.shape.columns;
  const int64_t n = b.shape.channels;
  const T* dy = b.dy.template as<T>();
  const auto* places = b.places.template as<uint8_t>();
  T* dx = b.dx.template as<T>() + ((image * rows.in + row) * columns.in + column) * n;
  for_each_chunk(n, [&](int64_t begin, int64_t count) {
    C sums[kRowChunk];
    std::fill_n(sums, count, C(0));
    for (int64_t i = rows.first_window(row); i < rows.last_window(row); ++i)
      for (int64_t j = columns.first_window(column); j < columns.last_window(column); ++j) {
        const int64_t down = rows.place(i, row), across = columns.place(j, column);
        if (down < 0 || across < 0) continue;
        const auto place = static_cast<int32_t>(down * columns.kernel + across);
        const int64_t at = ((image * rows.out + i) * columns.out + j) * n + begin;
        add_where(place, places + at, dy + at, count, sums);
      }
    ORTM_SIMD
    for (int64_t c = 0; c < count; ++c) dx[begin + c] = stored<T>(sums[c]);
  });
}

template <class T>
void pool_gradient(const KernelArgs& args) {
  const Backward<T> b(args);
  const PoolShape& s = b.shape;
  const int64_t area = s.rows.in * s.columns.in;
  if (is_pixel_major(args.facts.inputs[0].layout) && is_pixel_major(args.facts.inputs[1].layout)) {
    parallel_ranges(args.context, s.images * area, grain_for(4 * s.channels),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t at = begin; at < end; ++at)
                        gather_pixel(b, at / area, at % area / s.columns.in, at % s.columns.in);
                    });
    return;
  }
  int64_t offsets[kNoPlace];
  for (int64_t place = 0; place < s.rows.kernel * s.columns.kernel; ++place)
    offsets[place] = s.offset_in_window(place, b.dx.strides[2], b.dx.strides[3]);
  parallel_ranges(args.context, s.images * s.channels, grain_for(2 * area),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t at = begin; at < end; ++at)
                      scatter_plane(b, at / s.channels, at % s.channels, offsets);
                  });
}

void max_pool_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { pool_gradient<T>(args); });
}

bool is_wanted(const StepFacts& facts, size_t output) {
  const std::vector<bool>& used = facts.node().output_used;
  return output < used.size() ? used[output] : facts.outputs[output].dtype != DType::Undefined;
}

size_t max_pool_workspace(const StepFacts& facts) {
  const OperandFacts& x = facts.inputs[0];
  if (x.dtype != DType::Float32 || is_pixel_major(x.layout)) return 0;
  if (is_wanted(facts, 1) || is_wanted(facts, 2)) return 0;
  return MaxPooling(facts).bands.workspace_bytes(facts);
}

REGISTER_CPU_KERNEL({.op = "MaxPool",
                     .name = "max_pool_cpu",
                     .dtypes = kAllFloats,
                     .run = max_pool,
                     .unsupported = image_pool_unsupported,
                     .workspace_bytes = max_pool_workspace,
                     .output_strides = pooled_strides,
                     .prepare = prepare_pooling,
                     .layout = LayoutRule::MemoryFormat,
                     .leaves_out_unused = true});
REGISTER_CPU_KERNEL({.op = "MaxPoolGrad",
                     .name = "max_pool_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = max_pool_grad,
                     .unsupported = image_pool_unsupported,
                     .output_strides = pooled_strides,
                     .prepare = prepare_max_pool_grad,
                     .layout = LayoutRule::MemoryFormat});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
