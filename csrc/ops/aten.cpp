// ATen: any operator of the dispatcher. Operands are its tensors in argument order; `arg_<name>`
// holds every other argument, with "tensor:k" and "tensors:k,k" pointing at operands.
// It has no gradient of its own: the front end hands over a traced one as CustomGradient.
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Types come from the tracer and never change.
void keep_types(InferContext&) {}

// Torch's operators on images do; group norms want their operands row-major.
bool keeps_channels_last(const Node& node) {
  return !node.attrs.string("operator", "").starts_with("aten.native_group_norm");
}

}  // namespace

REGISTER_OP(ATen, {.domain = "org.pytorch.aten",
                   .inputs = {"tensors*"},
                   .outputs = {"results*"},
                   .kind = OpKind::Opaque,
                   .infer = keep_types,
                   .keeps_channels_last = keeps_channels_last});

}  // namespace ortmodule
