// Distances between rows and points, to the power p: a row's distances to a strip of points stay in
// the first-level cache while the columns are added up in order, so that results do not depend on
// threads. Those of four rows of float32 to two vectors of points stay in registers.
#include <cmath>

#include "kernels/cpu/float_vec.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kStrip = 1024;

enum class Power : uint8_t { One, Two, Any };

template <class T, Power kPower>
inline T power_of(T difference, T p) {
  if constexpr (kPower == Power::Two) return difference * difference;
  if constexpr (kPower == Power::One) return std::fabs(difference);
  return std::pow(std::fabs(difference), p);
}

template <class T, Power kPower>
void distances_of_row(const T* x, const T* z, T* y, int64_t columns, int64_t points, int64_t done,
                      T p) {
  for (int64_t first = done; first < points; first += kStrip) {
    const int64_t count = std::min(kStrip, points - first);
    T* strip = y + first;
    std::fill_n(strip, count, T(0));
    for (int64_t f = 0; f < columns; ++f) {
      const T value = x[f];
      const T* line = z + f * points + first;
      ORTM_SIMD
      for (int64_t j = 0; j < count; ++j) strip[j] += power_of<T, kPower>(value - line[j], p);
    }
  }
}

/// The distances of rows [0, kRows) to all whole pairs of vectors of points; returns the points
/// that are done.
template <Power kPower, int64_t kRows>
int64_t distances_of_rows(const float* x, const float* z, float* y, int64_t columns,
                          int64_t points) {
  constexpr int64_t kCount = FloatVec::kCount;
  const auto power = [](FloatVec d) { return kPower == Power::Two ? d * d : magnitude_of(d); };
  int64_t first = 0;
  for (; first + 2 * kCount <= points; first += 2 * kCount) {
    FloatVec sums[kRows][2];
    ORTM_UNROLL
    for (auto& pair : sums) pair[0] = pair[1] = FloatVec(0.0f);
    for (int64_t f = 0; f < columns; ++f) {
      const float* line = z + f * points + first;
      const FloatVec low = FloatVec::load(line), high = FloatVec::load(line + kCount);
      ORTM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const FloatVec value(x[r * columns + f]);
        sums[r][0] = sums[r][0] + power(value - low);
        sums[r][1] = sums[r][1] + power(value - high);
      }
    }
    ORTM_UNROLL
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t v = 0; v < 2; ++v) sums[r][v].store(y + r * points + first + v * kCount);
  }
  return first;
}

/// Rows [begin, end).
template <class T, Power kPower>
void distances_of_range(const T* x, const T* z, T* y, int64_t columns, int64_t points,
                        int64_t begin, int64_t end, T p) {
  constexpr int64_t kRows = 4;
  for (int64_t row = begin; row < end;) {
    int64_t count = 1, done = 0;
    if constexpr (std::is_same_v<T, float> && kPower != Power::Any) {
      count = end - row >= kRows ? kRows : 1;
      const auto run =
          count == kRows ? distances_of_rows<kPower, kRows> : distances_of_rows<kPower, 1>;
      done = run(x + row * columns, z, y + row * points, columns, points);
    }
    for (const int64_t stop = row + count; row < stop; ++row)
      distances_of_row<T, kPower>(x + row * columns, z, y + row * points, columns, points, done, p);
  }
}

template <class T, Power kPower>
void run_with(const KernelArgs& args, T p) {
  const int64_t rows = args.in[0].sizes[0], columns = args.in[0].sizes[1],
                points = args.in[1].sizes[1];
  parallel_ranges(args.context, rows, grain_for(columns * points), [&](int64_t begin, int64_t end) {
    distances_of_range<T, kPower>(args.in[0].as<const T>(), args.in[1].as<const T>(),
                                  args.out[0].as<T>(), columns, points, begin, end, p);
  });
}

void run_power_distances(const KernelArgs& args) {
  const double p = args.facts.node().attrs.number("p");
  dispatch_float(args.in[0].dtype, [&]<class T> {
    if constexpr (!kIsHalf<T>) {
      if (p == 1)
        run_with<T, Power::One>(args, T(1));
      else if (p == 2)
        run_with<T, Power::Two>(args, T(2));
      else
        run_with<T, Power::Any>(args, static_cast<T>(p));
    }
  });
}

REGISTER_CPU_KERNEL({.op = "PowerDistances",
                     .name = "power_distances_cpu",
                     .dtypes = kFloats,
                     .run = run_power_distances});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
