// y = sqrt(sum(x^2)) over `axes`, which stay as dimensions of 1, and the sum of sizes
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// dx = dy x / y, and 0 where y is 0, also for the gradient of this one.
Grads euclidean_norm_grad(GradContext& c) {
  const Handle y = c.y(), zero = c.literal(0.0, y.dtype()), one = c.literal(1.0, y.dtype());
  const Handle none = c.emit("Equal", {y, zero});
  const Handle divisor = c.emit("Where", {none, one, y});
  return {c.x() * c.emit("Where", {none, zero, c.dy() / divisor})};
}

/// A norm of x over the dimensions in `attrs`, which stay.
Value* norm(TorchCall& t, Value* x, double order, const Attrs& attrs) {
  if (order == 2.0) return t.emit("ReduceL2", {x}, {{"axes", *attrs.find("axes")}});
  if (order != 1.0) t.refuse(str("a norm of order ", order, " has no op"));
  return t.emit("ReduceSum", {t.emit("Abs", {x})}, attrs);
}

Values convert_vector_norm(TorchCall& t) {
  require_real(t, true);
  const DType dtype = compute_dtype(t.output().dtype);
  const double order = t.number_or("ord", 2.0);
  Value* x = t.cast(t.operand("self", t.dtype_or("dtype", t.output().dtype)), dtype);
  if (x->rank() == 0) t.refuse("a scalar has no axis");
  const std::vector<int64_t> axes = t.axes("dim", x->rank());
  Value* y = norm(t, x, order, {{"axes", Dims(axes.begin(), axes.end())}, {"keepdims", 1}});
  return {t.cast(t.reshape(y, t.output().dims), t.output().dtype)};
}

REGISTER_OP(ReduceL2, {.inputs = {"x"},
                       .outputs = {"y"},
                       .attrs = {{"axes", Dims()}},
                       .kind = OpKind::Reduction,
                       .infer = infer_reduce_kept,
                       .grad = euclidean_norm_grad,
                       .body = R"(euclidean_norm (x) => (y) {
                         square = Mul (x, x)
                         sum = ReduceSum<axes=@axes, keepdims=1> (square)
                         y = Sqrt (sum)
                       })",
                       .from_torch = {{"aten.linalg_vector_norm.default", convert_vector_norm}}});

}  // namespace
}  // namespace ortmodule
