// y = zeros of `shape`, absent if all of the gradients x1..xn are absent: the gradient of an
// operand that does not affect the result. A constant would not become absent with the gradients.
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_gradient_zeros(InferContext& c) {
  c.set(0, c.attrs().dtype("dtype"), c.attrs().dims("shape"));
}

bool depends_on_none(size_t, size_t) { return false; }

REGISTER_OP(GradientZeros, {.domain = "org.pytorch.aten",
                            .inputs = {"gradients*"},
                            .outputs = {"y"},
                            .kind = OpKind::Data,
                            .infer = infer_gradient_zeros,
                            .grad = [](GradContext& c) { return Grads(c.input_count()); },
                            .depends = depends_on_none});

}  // namespace
}  // namespace ortmodule
