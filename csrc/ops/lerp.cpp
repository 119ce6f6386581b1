// y = a + weight (b - a), from the nearer end, so that weights of 0 and 1 give the ends
#include <cmath>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

std::string lerp_body(const Node& node) {
  const std::string dtype{name_of(node.output()->dtype)};
  const std::string near = R"(near_step = Mul (weight, way)
    near = Add (a, near_step)
    )";
  const std::string far = str("rest = Sub (1.0:", dtype, R"(, weight)
    far_step = Mul (way, rest)
    far = Sub (b, far_step)
    )");
  std::string choice = near + far +
                       str("size = Abs (weight)\n    is_near = Less (size, 0.5:", dtype,
                           ")\n    y = Where (is_near, near, far)\n");
  const Value& weight = *node.input(2);
  if (weight.is_literal()) {
    const bool is_near = std::abs(std::get<double>(weight.literal())) < 0.5;
    choice = is_near ? near + "y = Identity (near)\n" : far + "y = Identity (far)\n";
  }
  return "lerp (a, b, weight) => (y) {\n    way = Sub (b, a)\n    " + choice + "  }";
}

Grads lerp_grad(GradContext& c) {
  const Handle dy = c.dy(), weight = c.x(2);
  return {dy * (1.0 - weight), dy * weight, dy * (c.x(1) - c.x(0))};
}

// 16-bit floats in 32 bits, rounded once
Values convert_lerp(TorchCall& t) {
  require_real(t, true);
  const DType dtype = t.output().dtype, inside = compute_dtype(dtype);
  const auto operand = [&](std::string_view name) {
    return t.cast(t.operand(name, dtype), inside);
  };
  Value* weight = t.is_tensor("weight") ? operand("weight") : t.operand("weight", inside);
  return {t.cast(t.emit("Lerp", {operand("self"), operand("end"), weight}), dtype)};
}

REGISTER_OP(Lerp, {.domain = "com.microsoft",
                   .inputs = {"a", "b", "weight"},
                   .outputs = {"y"},
                   .kind = OpKind::Pointwise,
                   .infer = infer_broadcast,
                   .grad = lerp_grad,
                   .body_of = lerp_body,
                   .from_torch = {{"aten.lerp.Scalar", convert_lerp},
                                  {"aten.lerp.Tensor", convert_lerp}}});

}  // namespace
}  // namespace ortmodule
