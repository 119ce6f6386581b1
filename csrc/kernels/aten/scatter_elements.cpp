// ScatterElements through torch's out-variants, into planned memory.
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

Reason unknown_reduction(const StepFacts& facts) {
  const std::string reduction = facts.node().attrs.string("reduction", "none");
  if (reduction == "add" || reduction == "none") return {};
  return str("reduction must be add or none, but found ", reduction);
}

// All operands are contiguous, so on the CPU torch takes the loop that sorts nothing and allocates
// nothing; each element of y is written by one thread, in the order of the indices. On CUDA it adds
// with atomics.
void scatter_elements(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  at::Tensor y = as_tensor(args.out[0]);
  const at::Tensor data = as_tensor(args.in[0]);
  const at::Tensor indices = as_tensor(args.in[1]);
  const at::Tensor updates = as_tensor(args.in[2]);
  const int64_t axis = attrs.integer("axis");
  if (attrs.string("reduction", "none") == "add") {
    at::scatter_add_out(y, data, axis, indices, updates);
  } else {
    at::scatter_out(y, data, axis, indices, updates);
  }
}

REGISTER_ATEN_KERNEL({.op = "ScatterElements",
                      .name = "scatter_elements_aten",
                      .dtypes = kRealTypes,
                      .run = scatter_elements,
                      .unsupported = unknown_reduction,
                      .library_bytes = probed_bytes<scatter_elements>},
                     {.deterministic = false});

}  // namespace
}  // namespace ortmodule
