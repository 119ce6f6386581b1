// y = zeros of `shape`, there where one of the gradients x1..xn arrives: the gradient of an op that
// forgets an operand. Unlike a constant it goes with the gradients when those are absent.
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_gradient_zeros(InferContext& c) {
  c.set(0, c.attrs().dtype("dtype"), c.attrs().dims("shape"));
}

REGISTER_OP(GradientZeros, {.domain = "org.pytorch.aten",
                            .inputs = {"gradients*"},
                            .outputs = {"y"},
                            .kind = OpKind::Data,
                            .infer = infer_gradient_zeros});

}  // namespace
}  // namespace ortmodule
