// ScatterElements through torch's out-variants, into planned memory.
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

template <bool adds>
Reason other_reduction(const StepFacts& facts) {
  const std::string reduction = facts.node().attrs.string("reduction", "none");
  if (reduction == (adds ? "add" : "none")) return {};
  return str("the reduction is ", reduction);
}

// Takes an index that is expanded to its rows' elements as it is.
void scatter_elements(const KernelArgs& args) {
  at::Tensor y = as_tensor(args.out[0]);
  at::scatter_out(y, as_tensor(args.in[0]), args.facts.node().attrs.integer("axis"),
                  as_tensor(args.in[1]), as_tensor(args.in[2]));
}

// All operands are contiguous, so on the CPU torch takes the loop that sorts nothing and allocates
// nothing; each element of y is written by one thread, in the order of the indices. On CUDA it adds
// with atomics.
void scatter_add(const KernelArgs& args) {
  at::Tensor y = as_tensor(args.out[0]);
  at::scatter_add_out(y, as_tensor(args.in[0]), args.facts.node().attrs.integer("axis"),
                      as_tensor(args.in[1]), as_tensor(args.in[2]));
}

REGISTER_ATEN_KERNEL({.op = "ScatterElements",
                      .name = "scatter_elements_aten",
                      .dtypes = kRealTypes,
                      .run = scatter_elements,
                      .unsupported = other_reduction<false>,
                      .library_bytes = probed_bytes<scatter_elements>,
                      .input_rules = {LayoutRule::Contiguous, LayoutRule::Any, LayoutRule::Any}},
                     {.deterministic = false});
REGISTER_ATEN_KERNEL({.op = "ScatterElements",
                      .name = "scatter_add_aten",
                      .dtypes = kRealTypes,
                      .run = scatter_add,
                      .unsupported = other_reduction<true>,
                      .library_bytes = probed_bytes<scatter_add>},
                     {.deterministic = false});

}  // namespace
}  // namespace ortmodule
