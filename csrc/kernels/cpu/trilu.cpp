// Trilu: the upper (j - i >= k) or lower (j - i <= k) triangle of the last two dimensions, zero
// elsewhere. Bytes moved: x and y once.
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class T>
void trilu_row(const T* x, T* y, int64_t columns, int64_t first, int64_t last) {
  const auto clear = [&](int64_t begin, int64_t end) {
    if (begin < end) std::memset(y + begin, 0, static_cast<size_t>(end - begin) * sizeof(T));
  };
  clear(0, first);
  if (x != y && first < last)
    std::memcpy(y + first, x + first, static_cast<size_t>(last - first) * sizeof(T));
  clear(std::max(first, last), columns);
}

void run_trilu(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const bool upper = attrs.integer("upper", 1) != 0;
  const int64_t k = attrs.integer("k", 0);
  const TensorView& x = args.in[0];
  const int64_t rows = x.sizes[x.rank - 2], columns = x.sizes[x.rank - 1];
  if (x.element_count() == 0) return;
  dispatch_width(size_of(x.dtype), [&]<class T> {
    parallel_ranges(args.context, x.element_count() / columns, grain_for(columns),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        const int64_t edge = row % rows + k;  // first kept column, or last one
                        const int64_t first = upper ? std::clamp<int64_t>(edge, 0, columns) : 0;
                        const int64_t last =
                            upper ? columns : std::clamp<int64_t>(edge + 1, 0, columns);
                        trilu_row(x.as<T>() + row * columns, args.out[0].as<T>() + row * columns,
                                  columns, first, last);
                      }
                    });
  });
}

REGISTER_CPU_KERNEL(
    {.op = "Trilu", .name = "trilu_cpu", .dtypes = kMovedTypes, .run = run_trilu, .inplace = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
