// y = x in row-major order; the plan puts it where a kernel or a view needs that

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Grads contiguous_grad(GradContext& c) { return {c.dy()}; }

REGISTER_OP(Contiguous, {.domain = "com.microsoft",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .kind = OpKind::Data,
                         .infer = infer_same_as_input,
                         .grad = contiguous_grad});

}  // namespace
}  // namespace ortmodule
