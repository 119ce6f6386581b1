// Losses that decompose into elementary ops: mean squared error, L1 and smooth L1, Huber, binary
// cross entropy, negative log likelihood

#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// self - target, computed in `inside`
Value* difference_in(TorchCall& t, DType inside) {
  require_real(t, true);
  auto operand = [&](std::string_view name) {
    return t.cast(t.operand(name, t.output().dtype), inside);
  };
  return t.emit("Sub", {operand("self"), operand("target")});
}

Value* difference(TorchCall& t) { return difference_in(t, t.output().dtype); }

Values convert_mse(TorchCall& t) {
  Value* d = difference(t);
  return {reduce_loss(t, t.emit("Mul", {d, d}))};
}

Values convert_l1(TorchCall& t) { return {reduce_loss(t, t.emit("Abs", {difference(t)}))}; }

// d^2 / 2 * inner up to the bound, then |d| * outer - offset; in 16 bits only the loss is rounded
Value* smooth(TorchCall& t, double bound, double inner, double outer, double offset) {
  const DType dtype = t.output().dtype;
  Value* d = difference_in(t, compute_dtype(dtype));
  Value* z = t.emit("Abs", {d});
  auto number = [&](double value) { return t.literal(value, z->dtype); };
  Value* is_far = t.emit("GreaterOrEqual", {z, number(bound)});  // false for NaN
  // Mask an infinite d: times the zero gradient of the branch not taken it would give NaN. Of d,
  // not of z, whose derivative at 0 is 0, as is then the second one.
  Value* near = t.emit("Where", {is_far, number(0.0), d});
  Value* quadratic = t.emit("Mul", {t.emit("Mul", {near, near}), number(0.5 * inner)});
  Value* linear = t.emit("Sub", {t.emit("Mul", {z, number(outer)}), number(offset)});
  return reduce_loss(t, t.cast(t.emit("Where", {is_far, linear, quadratic}), dtype));
}

Values convert_smooth_l1(TorchCall& t) {
  const double beta = t.number_or("beta", 1.0);
  if (beta == 0.0) return convert_l1(t);
  return {smooth(t, beta, 1.0 / beta, 1.0, 0.5 * beta)};
}

Values convert_huber(TorchCall& t) {
  const double delta = t.number_or("delta", 1.0);
  return {smooth(t, delta, 1.0, delta, 0.5 * delta * delta)};
}

// (1 - target) * x - (1 + (pos_weight - 1) * target) * log_sigmoid(x)
Values convert_bce_with_logits(TorchCall& t) {
  require_real(t, true);
  const DType dtype = t.output().dtype;
  Value* x = t.operand("self", dtype);
  Value* target = t.operand("target", dtype);
  Value* one = t.literal(1.0, dtype);
  Value* positive = t.emit("LogSigmoid", {x});
  if (t.optional_tensor("pos_weight")) {
    Value* excess = t.emit("Sub", {t.operand("pos_weight", dtype), one});
    Value* weight = t.emit("Add", {t.emit("Mul", {excess, target}), one});
    positive = t.emit("Mul", {weight, positive});
  }
  Value* loss = t.emit("Sub", {t.emit("Mul", {t.emit("Sub", {one, target}), x}), positive});
  if (t.optional_tensor("weight")) loss = t.emit("Mul", {loss, t.operand("weight", dtype)});
  return {reduce_loss(t, loss)};
}

// -weight[target] * x[target] for targets not ignored; the mean divides by the sum of their weights
Values convert_nll(TorchCall& t) {
  require_real(t, true);
  Value* x = t.tensor("self");
  Value* target = t.tensor("target");
  Value* weights = t.optional_tensor("weight");
  if (x->rank() == 0 || target->dtype != DType::Int64) t.refuse("labels must be int64");
  if (x->dtype != t.output().dtype || (weights && weights->dtype != x->dtype))
    t.refuse("scores, weights and loss must have the same type");
  const int64_t axis = x->rank() == 1 ? 0 : 1;
  const Attrs axes = {{"axes", Dims{axis}}};
  Value* zero = t.literal(0.0, x->dtype);
  Value* ignored = t.emit("Equal", {target, t.operand("ignore_index", DType::Int64)});
  // A negative label must stay out of range and not count from the end.
  Value* none = t.literal(0.0, DType::Int64);
  Value* beyond =
      t.emit("Sub", {target, t.size_literal(x->dims[static_cast<size_t>(axis)], DType::Int64)});
  Value* label = t.emit("Where", {t.emit("Less", {target, none}), beyond, target});
  label = t.emit("Where", {ignored, none, label});
  Value* picked =
      t.emit("GatherElements", {x, t.emit("Unsqueeze", {label}, axes)}, {{"axis", axis}});
  Value* weight = t.literal(1.0, x->dtype);
  if (weights) weight = t.emit("Gather", {weights, label}, {{"axis", 0}});
  weight = t.emit("Where", {ignored, zero, weight});
  Value* loss = t.emit("Neg", {t.emit("Squeeze", {picked}, axes)});
  loss = t.emit("Where", {ignored, zero, weights ? t.emit("Mul", {loss, weight}) : loss});
  const int64_t reduction = t.integer_or("reduction", 1);
  Value* total = t.emit("ReduceSum", {weight}, {{"keepdims", 0}});
  if (reduction == 0) return {loss, total};
  Value* sum = t.emit("ReduceSum", {loss}, {{"keepdims", 0}});
  return {reduction == 1 ? t.emit("Div", {sum, total}) : sum, total};
}

Values convert_nll_alone(TorchCall& t) { return {convert_nll(t).front()}; }

// The second result is the sum of the weights, for a mean only.
Values convert_nll_forward(TorchCall& t) {
  Values both = convert_nll(t);
  if (t.integer_or("reduction", 1) != 1) both[1] = nullptr;
  return both;
}

REGISTER_TORCH({{"aten.mse_loss.default", convert_mse},
                {"aten.l1_loss.default", convert_l1},
                {"aten.smooth_l1_loss.default", convert_smooth_l1},
                {"aten.huber_loss.default", convert_huber},
                {"aten.binary_cross_entropy_with_logits.default", convert_bce_with_logits},
                {"aten.nll_loss.default", convert_nll_alone},
                {"aten.nll_loss_nd.default", convert_nll_alone},
                {"aten.nll_loss_forward.default", convert_nll_forward},
                {"aten.nll_loss2d_forward.default", convert_nll_forward}});

}  // namespace
}  // namespace ortmodule
