// Sort and TopK through torch's out-variants, into planned memory: ties come in torch's order,
// unless they must be in that of the indices (`stable`).
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

void sort(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  at::Tensor values = as_tensor(args.out[0]), indices = as_tensor(args.out[1]);
  at::sort_out(values, indices, as_tensor(args.in[0]), attrs.flag("stable"), attrs.integer("axis"),
               attrs.flag("descending"));
}

void top_k(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  at::Tensor values = as_tensor(args.out[0]), indices = as_tensor(args.out[1]);
  if (attrs.flag("stable")) {
    const int64_t axis = attrs.integer("axis"), k = attrs.integer("k");
    const auto [all, order] =
        at::sort(as_tensor(args.in[0]), true, axis, attrs.integer("largest", 1) != 0);
    values.copy_(all.narrow(axis, 0, k));
    indices.copy_(order.narrow(axis, 0, k));
    return;
  }
  at::topk_out(values, indices, as_tensor(args.in[0]), attrs.integer("k"), attrs.integer("axis"),
               attrs.integer("largest", 1) != 0, attrs.integer("sorted", 1) != 0);
}

REGISTER_ATEN_KERNEL({.op = "Sort",
                      .name = "sort_aten",
                      .dtypes = kRealTypes,
                      .run = sort,
                      .library_bytes = probed_bytes<sort>});
REGISTER_ATEN_KERNEL({.op = "TopK",
                      .name = "top_k_aten",
                      .dtypes = kRealTypes,
                      .run = top_k,
                      .library_bytes = probed_bytes<top_k>});

}  // namespace
}  // namespace ortmodule
