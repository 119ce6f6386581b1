// Max pooling by square windows that the compiler knows and that move by two: those of most
// networks. Method: a thread takes a vector of neighbouring elements, so that positions are worked
// out once for it, and loads all it needs before it looks at any: of a row (planes, row-major) or
// of the channels of a pixel (channels-last). The gradient goes through two rows (and, in
// channels-last, two columns) of dx at once, which share windows. Elements of dx are added up in
// the order of pool.cu's gradient. Bytes moved: as there.
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/pool.h"

namespace ortmodule::cuda {

inline constexpr int kHalvingThreads = 256;

/// Of the positions 2 m and 2 m + 1, windows m to m + pad hold some.
template <int size, int pad>
struct HalvingWindow {
  static constexpr int kSize = size, kPad = pad;
  static_assert(pad <= 1 && pad < size && size - pad <= 2);

  static bool fits(const PoolAxis& a) {
    return a.kernel == size && a.stride == 2 && a.pad == pad && a.dilation == 1 &&
           2 * (a.out - 1) < a.in;  // place `pad` of every window is there
  }
};

/// Sizes of an image, and what threads are counted by from inside out: vectors of a row or pixel,
/// columns (channels-last), rows, then planes or images.
struct HalvingShape {
  int32_t rows_in = 0, rows_out = 0, columns_in = 0, columns_out = 0;
  int32_t channels = 1;  // of a pixel, channels-last
  FastDivisor vectors, columns, rows;
  int32_t threads = 0;
};

/// The remainder of a division, whose quotient takes the place of `at`.
__device__ __forceinline__ int32_t take_rest(int32_t& at, const FastDivisor& d) {
  const int32_t whole = quotient(at, d), rest = at - whole * value_of(d);
  at = whole;
  return rest;
}

__device__ __forceinline__ int32_t halving_thread() {
  return static_cast<int32_t>(blockIdx.x) * kHalvingThreads + static_cast<int32_t>(threadIdx.x);
}

/// The largest element of a window so far, from its first place inside of the image on: the first
/// one of equals, the last one of NaNs. Places beside the image hold -infinity.
template <class C>
struct LargestOfWindow {
  C value = -std::numeric_limits<C>::infinity();
  int32_t place = 0;

  __device__ __forceinline__ void take(C x, int32_t at) {
    const bool larger = x > value || x != x;
    value = larger ? x : value;
    place = larger ? at : place;
  }
};

/// What `from` points to, or `rest` if it is not there.
template <int kCount, class T>
__device__ __forceinline__ Words<T, kCount> load_if(bool exists, const T* from, T rest) {
  return exists ? Words<T, kCount>::load(from) : Words<T, kCount>::filled(rest);
}

template <class T, int kCount>
__device__ __forceinline__ void store_largest(const LargestOfWindow<ComputeOf<T>> (&of)[kCount],
                                              T* y, uint8_t* places) {
  ComputeOf<T> computed[kCount];
  uint8_t at[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    int32_t place = of[k].place;
#if defined(__CUDA_ARCH__)
    // Worked out here: below, where nobody may want it, every comparison would be kept for it.
    asm volatile("" : "+r"(place));
#endif
    computed[k] = of[k].value;
    at[k] = static_cast<uint8_t>(place);
  }
  if (y) narrow<T>(computed).store(y);
  if (places) Words<uint8_t, kCount>::of(at).store(places);
}

// --- planes --------------------------------------------------------------------------------------
template <class T, class W>
__global__ __launch_bounds__(kHalvingThreads) void max_pool_planes_cuda(
    ORTM_GRID_CONSTANT(HalvingShape) s, const T* x, T* y, uint8_t* places) {
  constexpr int kIn = kVectorCount<T>, kOut = kIn / 2, kSize = W::kSize, kPad = W::kPad;
  const int32_t thread = halving_thread();
  if (thread >= s.threads) return;
  int32_t plane = thread;
  const int32_t vector = take_rest(plane, s.vectors), row = 2 * take_rest(plane, s.rows) - kPad;
  const int32_t base = (plane * s.rows_in + row) * s.columns_in + vector * kIn;
  const uint32_t rows_in = static_cast<uint32_t>(s.rows_in);
  const T least = narrowed(-std::numeric_limits<ComputeOf<T>>::infinity(), T{});
  Words<T, kIn> elements[kSize];
  T before[kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const bool exists = i == kPad || static_cast<uint32_t>(row + i) < rows_in;
    elements[i] = load_if<kIn>(exists, x + base + i * s.columns_in, least);
    before[i] = kPad > 0 && exists && vector > 0 ? x[base + i * s.columns_in - 1] : least;
  }
  LargestOfWindow<ComputeOf<T>> largest[kOut];
#pragma unroll
  for (int k = 0; k < kOut; ++k)
    largest[k].place = (row < 0 ? -row * kSize : 0) + (k == 0 && vector == 0 ? kPad : 0);
    // Row by row, so that few comparisons of an element are needed again later.
#pragma unroll
  for (int i = 0; i < kSize; ++i)
#pragma unroll
    for (int k = 0; k < kOut; ++k)
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const int at = 2 * k + j - kPad;
        largest[k].take(widened(at < 0 ? before[i] : elements[i][at < 0 ? 0 : at]), i * kSize + j);
      }
  store_largest(largest, y ? y + thread * kOut : nullptr,
                places ? places + thread * kOut : nullptr);
}

// Rows 2 m and 2 m + 1 of dx.
template <class T, class W>
__global__ __launch_bounds__(kHalvingThreads) void max_pool_grad_planes_cuda(
    ORTM_GRID_CONSTANT(HalvingShape) s, const T* dy, const uint8_t* places, T* dx) {
  using C = ComputeOf<T>;
  constexpr int kIn = kVectorCount<T>, kOut = kIn / 2, kSize = W::kSize, kPad = W::kPad;
  const int32_t thread = halving_thread();
  if (thread >= s.threads) return;
  int32_t plane = thread;
  const int32_t vector = take_rest(plane, s.vectors), pair = take_rest(plane, s.rows);
  const int32_t from = (plane * s.rows_out + pair) * s.columns_out + vector * kOut;
  const bool is_last = (vector + 1) * kOut == s.columns_out;
  Words<T, kOut> values[1 + kPad];
  Words<uint8_t, kOut> at[1 + kPad];
  T value_behind[1 + kPad];
  int at_behind[1 + kPad];
#pragma unroll
  for (int i = 0; i <= kPad; ++i) {
    const int32_t begin = from + i * s.columns_out;
    const bool exists = pair + i<s.rows_out, behind = kPad> 0 && exists && !is_last;
    values[i] = load_if<kOut>(exists, dy + begin, T{});
    at[i] = load_if<kOut>(exists, places + begin, kNoPlace);
    value_behind[i] = behind ? dy[begin + kOut] : T{};
    at_behind[i] = behind ? places[begin + kOut] : kNoPlace;
  }
  C sums[2][kIn] = {};
#pragma unroll
  for (int i = 0; i <= kPad; ++i)
#pragma unroll
    for (int w = 0; w < kOut + kPad; ++w) {
      const C value = widened(w < kOut ? values[i][w % kOut] : value_behind[i]);
      const int place = w < kOut ? at[i][w % kOut] : at_behind[i];
#pragma unroll
      for (int cell = 0; cell < 2 * kSize; ++cell) {
        const int row = cell / kSize, down = row + kPad - 2 * i;
        const int across = cell % kSize, column = 2 * w + across - kPad;
        if (down < 0 || down >= kSize || column < 0 || column >= kIn) continue;
        if (place == down * kSize + across) sums[row][column] += value;
      }
    }
  T* to = dx + (plane * s.rows_in + 2 * pair) * s.columns_in + vector * kIn;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const Words<T, kIn> out = narrow<T>(sums[row]);
    if (2 * pair + row < s.rows_in) out.store(to + row * s.columns_in);
  }
}

// --- channels-last -------------------------------------------------------------------------------
template <class T, class W>
__global__ __launch_bounds__(kHalvingThreads) void max_pool_pixels_cuda(
    ORTM_GRID_CONSTANT(HalvingShape) s, const T* x, T* y, uint8_t* places) {
  constexpr int kEach = kVectorCount<T>, kSize = W::kSize, kPad = W::kPad;
  const int32_t thread = halving_thread();
  if (thread >= s.threads) return;
  int32_t image = thread;
  const int32_t channel = take_rest(image, s.vectors) * kEach;
  const int32_t column = 2 * take_rest(image, s.columns) - kPad;
  const int32_t row = 2 * take_rest(image, s.rows) - kPad;
  const int32_t base = ((image * s.rows_in + row) * s.columns_in + column) * s.channels + channel;
  const uint32_t rows_in = static_cast<uint32_t>(s.rows_in);
  const uint32_t columns_in = static_cast<uint32_t>(s.columns_in);
  const T least = narrowed(-std::numeric_limits<ComputeOf<T>>::infinity(), T{});
  Words<T, kEach> elements[kSize * kSize];
#pragma unroll
  for (int place = 0; place < kSize * kSize; ++place) {
    const int i = place / kSize, j = place % kSize;
    const bool exists = (i == kPad || static_cast<uint32_t>(row + i) < rows_in) &&
                        (j == kPad || static_cast<uint32_t>(column + j) < columns_in);
    elements[place] = load_if<kEach>(exists, x + base + (i * s.columns_in + j) * s.channels, least);
  }
  LargestOfWindow<ComputeOf<T>> largest[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    largest[k].place = (row < 0 ? -row * kSize : 0) + (column < 0 ? -column : 0);
#pragma unroll
    for (int place = 0; place < kSize * kSize; ++place)
      largest[k].take(widened(elements[place][k]), place);
  }
  store_largest(largest, y ? y + thread * kEach : nullptr,
                places ? places + thread * kEach : nullptr);
}

// Two rows and two columns of dx.
template <class T, class W>
__global__ __launch_bounds__(kHalvingThreads) void max_pool_grad_pixels_cuda(
    ORTM_GRID_CONSTANT(HalvingShape) s, const T* dy, const uint8_t* places, T* dx) {
  using C = ComputeOf<T>;
  constexpr int kEach = kVectorCount<T>, kSize = W::kSize, kPad = W::kPad, kWindows = 1 + kPad;
  const int32_t thread = halving_thread();
  if (thread >= s.threads) return;
  int32_t image = thread;
  const int32_t channel = take_rest(image, s.vectors) * kEach;
  const int32_t column = take_rest(image, s.columns), row = take_rest(image, s.rows);
  const int32_t from = ((image * s.rows_out + row) * s.columns_out + column) * s.channels + channel;
  Words<T, kEach> values[kWindows * kWindows];
  Words<uint8_t, kEach> at[kWindows * kWindows];
#pragma unroll
  for (int w = 0; w < kWindows * kWindows; ++w) {
    const int i = w / kWindows, j = w % kWindows;
    const bool exists = row + i < s.rows_out && column + j < s.columns_out;
    const int32_t begin = from + (i * s.columns_out + j) * s.channels;
    values[w] = load_if<kEach>(exists, dy + begin, T{});
    at[w] = load_if<kEach>(exists, places + begin, kNoPlace);
  }
  T* to = dx + ((image * s.rows_in + 2 * row) * s.columns_in + 2 * column) * s.channels + channel;
#pragma unroll
  for (int pixel = 0; pixel < 4; ++pixel) {
    C sums[kEach] = {};
#pragma unroll
    for (int w = 0; w < kWindows * kWindows; ++w) {
      const int down = pixel / 2 + kPad - w / kWindows * 2;
      const int across = pixel % 2 + kPad - w % kWindows * 2;
      if (down < 0 || down >= kSize || across < 0 || across >= kSize) continue;
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (at[w][k] == down * kSize + across) sums[k] += widened(values[w][k]);
    }
    const Words<T, kEach> out = narrow<T>(sums);
    if (2 * row + pixel / 2 < s.rows_in && 2 * column + pixel % 2 < s.columns_in)
      out.store(to + (pixel / 2 * s.columns_in + pixel % 2) * s.channels);
  }
}

// --- launches ------------------------------------------------------------------------------------
/// Shape and layout of a step that these kernels can take.
template <class T>
struct HalvingLaunch {
  HalvingShape shape;
  bool planes = false, pixels = false;

  /// `large` and `small`: tensors before and after pooling. Threads are counted by the small one,
  /// or by pairs of rows (and columns) of the large one.
  HalvingLaunch(const PoolShape& s, const KernelArgs& args, bool by_pairs) {
    constexpr int kEach = kVectorCount<T>;
    if (s.images * s.channels * s.rows.in * s.columns.in > kLaunchElements) return;
    if (!are_aligned(args.in) || !are_aligned(args.out)) return;
    planes = all_are(is_contiguous, args.facts) && s.columns.in % kEach == 0 &&
             2 * s.columns.out == s.columns.in;
    pixels = !planes && all_are(is_channels_last, args.facts) && s.channels % kEach == 0;
    if (!planes && !pixels) return;
    const auto number = [](int64_t x) { return static_cast<int32_t>(x); };
    const auto divisor = [](int64_t x) { return FastDivisor(static_cast<uint32_t>(x)); };
    shape.rows_in = number(s.rows.in);
    shape.rows_out = number(s.rows.out);
    shape.columns_in = number(s.columns.in);
    shape.columns_out = number(s.columns.out);
    if (pixels) shape.channels = number(s.channels);
    const int64_t rows = by_pairs ? blocks_for(s.rows.in, 2) : s.rows.out;
    const int64_t columns = by_pairs ? blocks_for(s.columns.in, 2) : s.columns.out;
    const int64_t vectors = (planes ? s.columns.in : s.channels) / kEach;
    shape.vectors = divisor(vectors);
    shape.columns = divisor(columns);
    shape.rows = divisor(rows);
    shape.threads = number(vectors * rows * s.images * (planes ? s.channels : columns));
  }
  dim3 grid() const { return grid_of(blocks_for(shape.threads, kHalvingThreads)); }

 private:
  static bool are_aligned(std::span<const TensorView> views) {
    return std::all_of(views.begin(), views.end(), [](const TensorView& view) {
      return reinterpret_cast<uintptr_t>(view.data) % kVectorBytes == 0;
    });
  }
  /// All results have the layout of the first.
  static bool all_are(bool (*of_kind)(const Layout&), const StepFacts& facts) {
    return std::all_of(facts.inputs.begin(), facts.inputs.end(),
                       [&](const OperandFacts& f) { return of_kind(f.layout); }) &&
           of_kind(facts.outputs[0].layout);
  }
};

template <class T, class W>
bool launch_halving_pool(const KernelArgs& args, const PoolShape& s) {
  if (!W::fits(s.rows) || !W::fits(s.columns)) return false;
  const HalvingLaunch<T> launch(s, args, false);
  const T* x = args.in[0].as<T>();
  T* y = args.out[0].as<T>();
  uint8_t* places = args.out[2].as<uint8_t>();
  if (launch.planes)
    ORTM_LAUNCH((max_pool_planes_cuda<T, W>), launch.grid(), kHalvingThreads, 0, args.context,
                launch.shape, x, y, places);
  else if (launch.pixels)
    ORTM_LAUNCH((max_pool_pixels_cuda<T, W>), launch.grid(), kHalvingThreads, 0, args.context,
                launch.shape, x, y, places);
  return launch.planes || launch.pixels;
}

template <class T, class W>
bool launch_halving_pool_grad(const KernelArgs& args, const PoolShape& s) {
  if (!W::fits(s.rows) || !W::fits(s.columns)) return false;
  const HalvingLaunch<T> launch(s, args, true);
  const T* dy = args.in[0].as<T>();
  const uint8_t* places = args.in[1].as<uint8_t>();
  T* dx = args.out[0].as<T>();
  if (launch.planes)
    ORTM_LAUNCH((max_pool_grad_planes_cuda<T, W>), launch.grid(), kHalvingThreads, 0, args.context,
                launch.shape, dy, places, dx);
  else if (launch.pixels)
    ORTM_LAUNCH((max_pool_grad_pixels_cuda<T, W>), launch.grid(), kHalvingThreads, 0, args.context,
                launch.shape, dy, places, dx);
  return launch.planes || launch.pixels;
}

/// False if pool.cu's kernels for windows of any kind are to do it.
template <class T>
bool halving_pool(const KernelArgs& args, const PoolShape& s) {
  if (args.out[1].data) return false;  // indices
  return launch_halving_pool<T, HalvingWindow<3, 1>>(args, s) ||
         launch_halving_pool<T, HalvingWindow<2, 0>>(args, s);
}
template <class T>
bool halving_pool_grad(const KernelArgs& args, const PoolShape& s) {
  return launch_halving_pool_grad<T, HalvingWindow<3, 1>>(args, s) ||
         launch_halving_pool_grad<T, HalvingWindow<2, 0>>(args, s);
}

}  // namespace ortmodule::cuda
