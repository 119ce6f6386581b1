// y = log(exp(a) + exp(b)), which overflows for no a and b

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Equal infinities have no difference.
std::string log_add_exp_body(const Node& node) {
  return str(R"(log_add_exp (a, b) => (y) {
    larger = Max (a, b)
    equal = Equal (a, b)
    way = Sub (a, b)
    far = Abs (way)
    distance = Where (equal, 0.0:)",
             name_of(node.output()->dtype), R"(, far)
    back = Neg (distance)
    power = Exp (back)
    rest = Log1p (power)
    y = Add (larger, rest)
  })");
}

Grads log_add_exp_grad(GradContext& c) {
  const Handle way = c.x(0) - c.x(1);
  return {c.needs(0) ? c.dy() * c.emit("Sigmoid", {way}) : Handle(),
          c.needs(1) ? c.dy() * c.emit("Sigmoid", {-way}) : Handle()};
}

Values convert_log_add_exp(TorchCall& t) {
  require_real(t, true);
  const DType dtype = t.output().dtype, inside = compute_dtype(dtype);
  const auto operand = [&](std::string_view name) {
    return t.cast(t.operand(name, dtype), inside);
  };
  return {t.cast(t.emit("LogAddExp", {operand("self"), operand("other")}), dtype)};
}

REGISTER_OP(LogAddExp, {.domain = "com.microsoft",
                        .inputs = {"a", "b"},
                        .outputs = {"y"},
                        .kind = OpKind::Pointwise,
                        .infer = infer_broadcast,
                        .grad = log_add_exp_grad,
                        .body_of = log_add_exp_body,
                        .from_torch = {{"aten.logaddexp.default", convert_log_add_exp}}});

}  // namespace
}  // namespace ortmodule
