// Distances between rows and points, to the power p: a row's distances to a strip of points stay in
// the first-level cache while the columns are added up in order, so that results do not depend on
// threads.
#include <cmath>

#include "kernels/cpu/cpu_kernel.h"
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
void distances_of_row(const T* x, const T* z, T* y, int64_t columns, int64_t points, T p) {
  for (int64_t first = 0; first < points; first += kStrip) {
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

template <class T, Power kPower>
void run_with(const KernelArgs& args, T p) {
  const int64_t rows = args.in[0].sizes[0], columns = args.in[0].sizes[1],
                points = args.in[1].sizes[1];
  parallel_ranges(args.context, rows, grain_for(columns * points), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      distances_of_row<T, kPower>(args.in[0].as<const T>() + row * columns,
                                  args.in[1].as<const T>(), args.out[0].as<T>() + row * points,
                                  columns, points, p);
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
