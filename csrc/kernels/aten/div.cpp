// Div of integers, which rounds towards zero. Floating division belongs to the pointwise group.
#include <ATen/ops/div.h>

#include "kernels/aten/aten_views.h"

namespace ortmodule {
namespace {

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
