// CumSum along `axis`, from the end if `reverse`, without the element itself if `exclusive`. Floats
// add up in double, as in PyTorch. Bytes moved: x and y once.
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class T>
void cumsum_line(const T* x, T* y, int64_t count, int64_t stride, bool exclusive) {
  using Sum = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, double, int64_t>;
  Sum sum = 0;
  for (int64_t i = 0; i < count; ++i, x += stride, y += stride) {
    const Sum before = sum;
    sum += static_cast<Sum>(computed(*x));
    *y = stored<T>(exclusive ? before : sum);
  }
}

constexpr int64_t kColumns = 512;  // whose sums stay in the first cache

/// `columns` <= kColumns neighbouring lines.
template <class T>
void cumsum_columns(const T* x, T* y, int64_t count, int64_t stride, int64_t columns,
                    bool exclusive) {
  using Sum = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, double, int64_t>;
  Sum sums[kColumns] = {};
  for (int64_t i = 0; i < count; ++i, x += stride, y += stride) {
    if (exclusive) {
      for (int64_t j = 0; j < columns; ++j) {
        const Sum before = sums[j];
        sums[j] += static_cast<Sum>(computed(x[j]));
        y[j] = stored<T>(before);
      }
    } else {
      ORTM_SIMD
      for (int64_t j = 0; j < columns; ++j) {
        sums[j] += static_cast<Sum>(computed(x[j]));
        y[j] = stored<T>(sums[j]);
      }
    }
  }
}

void run_cumsum(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const AxisSplit split = split_at(args.facts.inputs[0].layout.sizes, attrs.integer("axis", 0));
  const bool reverse = attrs.flag("reverse"), exclusive = attrs.flag("exclusive");
  const int64_t stride = reverse ? -split.inner : split.inner;
  const int64_t start = reverse ? (split.axis - 1) * split.inner : 0;
  if (split.axis == 0) return;
  dispatch_real(args.in[0].dtype, [&]<class T> {
    parallel_ranges(
        args.context, split.outer * split.inner, grain_for(split.axis),
        [&](int64_t begin, int64_t end) {
          for (int64_t line = begin; line < end;) {
            const int64_t inner = line % split.inner;
            const int64_t at = line / split.inner * split.axis * split.inner + inner + start;
            const int64_t columns = std::min({kColumns, split.inner - inner, end - line});
            const T* x = args.in[0].as<T>() + at;
            T* y = args.out[0].as<T>() + at;
            if (columns == 1)
              cumsum_line(x, y, split.axis, stride, exclusive);
            else
              cumsum_columns(x, y, split.axis, stride, columns, exclusive);
            line += columns;
          }
        });
  });
}

REGISTER_CPU_KERNEL({.op = "CumSum",
                     .name = "cumsum_cpu",
                     .dtypes = kAllFloats | kIntegers,
                     .run = run_cumsum,
                     .inplace = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
