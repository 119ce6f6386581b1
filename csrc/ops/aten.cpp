// ATen: any operator of torch's dispatcher. Operands are its tensors in argument order;
// `arg_<name>` has each argument, with "tensor:k" and "tensors:k,k" as references to operands. It
// has no gradient: the front end adds a traced one as CustomGradient.
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// The exporter sets the traced types.
void keep_types(InferContext&) {}

// torch's image operators do; group norms require row-major operands.
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
