// GroupedMatMul and GroupedOuterProduct through torch's product, one for each group: of all types
// and on CUDA, where the ends of the groups are waited for.
#include <ATen/ops/mm.h>

#include "kernels/aten/aten_views.h"
#include "kernels/grouped_rows.h"

namespace ortmodule {
namespace {

template <class Group>
int64_t each_group(const TensorView& ends, int64_t rows, const Group& group) {
  if (engine_device().is_cpu()) return for_each_group(ends, rows, group);
  const at::Tensor known = as_tensor(ends).to(at::kCPU, at::kLong);
  return for_each_group(known.const_data_ptr<int64_t>(), known.numel(), rows, group);
}

void grouped_matmul(const KernelArgs& args) {
  const at::Tensor x = as_tensor(args.in[0]), w = as_tensor(args.in[1]);
  at::Tensor y = as_tensor(args.out[0]);
  const int64_t end =
      each_group(args.in[2], x.size(0), [&](int64_t e, int64_t first, int64_t count) {
        if (count == 0) return;
        at::Tensor part = y.narrow(0, first, count);
        at::mm_out(part, x.narrow(0, first, count), w.select(0, e));
      });
  y.narrow(0, end, x.size(0) - end).zero_();
}

void grouped_outer_product(const KernelArgs& args) {
  const at::Tensor a = as_tensor(args.in[0]), b = as_tensor(args.in[1]);
  at::Tensor y = as_tensor(args.out[0]);
  each_group(args.in[2], a.size(0), [&](int64_t e, int64_t first, int64_t count) {
    at::Tensor part = y.select(0, e);
    if (count == 0) {
      part.zero_();
      return;
    }
    at::mm_out(part, a.narrow(0, first, count).t(), b.narrow(0, first, count));
  });
}

KernelDef grouped_kernel(std::string_view op, std::string_view name,
                         void (*run)(const KernelArgs&)) {
  return {.op = op,
          .name = name,
          .dtypes = kAllFloats,
          .run = run,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Contiguous}};
}

REGISTER_ATEN_KERNEL((grouped_kernel("GroupedMatMul", "grouped_matmul_aten", grouped_matmul)));
REGISTER_ATEN_KERNEL((grouped_kernel("GroupedOuterProduct", "grouped_outer_product_aten",
                                     grouped_outer_product)));

}  // namespace
}  // namespace ortmodule
