// Attention that arrives as one op stays one op: torch has the fused kernels

#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Having a row keeps the composite whole through the tracer.
Values leave_to_torch(TorchCall& t) { t.refuse("runs as torch's fused attention"); }

REGISTER_TORCH({{"aten.scaled_dot_product_attention.default", leave_to_torch}});

}  // namespace
}  // namespace ortmodule
