// Range: y[i] = start + i delta, exact for integers. Bytes moved: y once.
#include <cmath>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

bool is_integer(const Attrs& attrs, std::string_view name) {
  return std::holds_alternative<DimExpr>(*attrs.find(name));
}

void run_range(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const TensorView& y = args.out[0];
  const int64_t count = y.element_count();
  const bool integers = is_integer(attrs, "start") && is_integer(attrs, "delta");
  const double start = attrs.number("start"), delta = attrs.number("delta");
  const int64_t first = integers ? attrs.integer("start") : 0;
  const int64_t step = integers ? attrs.integer("delta") : 0;
  dispatch_real(y.dtype, [&]<class T> {
    T* out = y.as<T>();
    for (int64_t i = 0; i < count; ++i) {
      if (integers) {
        out[i] = stored<T>(static_cast<ComputeOf<T>>(first + i * step));
      } else {
        out[i] = stored<T>(static_cast<ComputeOf<T>>(start + static_cast<double>(i) * delta));
      }
    }
  });
}

REGISTER_CPU_KERNEL(
    {.op = "Range", .name = "range_cpu", .dtypes = kAllFloats | kIntegers, .run = run_range});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
