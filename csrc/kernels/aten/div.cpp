// Div of integers, which rounds towards zero. Floating division belongs to the pointwise group.
#include <ATen/ops/div.h>
#include <ATen/ops/scalar_tensor.h>

#include "kernels/aten/aten_views.h"

namespace ortmodule {
namespace {

at::Tensor operand(const KernelArgs& args, size_t i) {
  const NodeFacts& node = args.facts.node();
  if (node.inputs[i].kind != OperandRef::Kind::Literal) return as_tensor(args.in[i]);
  return at::scalar_tensor(node.inputs[i].literal,
                           at::TensorOptions().dtype(aten_type(node.input_dtypes[i])));
}

void divide(const KernelArgs& args) {
  at::Tensor y = as_tensor(args.out[0]);
  at::div_out(y, operand(args, 0), operand(args, 1), "trunc");
}

REGISTER_ATEN_KERNEL({.op = "Div",
                      .name = "integer_div_aten",
                      .dtypes = kIntegers,
                      .run = divide,
                      .layout = LayoutRule::Any});

}  // namespace
}  // namespace ortmodule
