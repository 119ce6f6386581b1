// loss = reduce(w[label] * (log_sum_exp(scores) - scores[label])) over labels != ignore_index, with
// label_smoothing; the mean divides by the sum of w[label]. `scores` are the logits.

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_loss(InferContext& c) {
  const Value& scores = c.input(0);
  const Value& labels = c.input(1);
  if (scores.rank() < 2) c.fail(str("scores must have rank 2 or more, but found ", scores.rank()));
  Dims expected = scores.dims;
  expected.erase(expected.begin() + 1);
  if (!may_equal(labels.dims, expected))
    c.fail(str("labels must have the shape ", dims_text(expected), ", but found ",
               dims_text(labels.dims)));
  if (c.has_input(2) && !may_equal(c.input(2).dims, Dims{scores.dims[1]}))
    c.fail(str("weights must have the shape ", dims_text({scores.dims[1]}), ", but found ",
               dims_text(c.input(2).dims)));
  const bool none = c.attrs().string("reduction") == "none";
  c.set(0, scores.dtype, none ? labels.dims : Dims());
  c.set(1, statistics_dtype(scores.dtype), labels.dims);
}

/// exp(scores - log_sum_exp): the probabilities, in the type of log_sum_exp.
Handle softmax_of(GradContext& c, Handle scores, Handle log_sum_exp) {
  Dims column = log_sum_exp.dims();
  column.insert(column.begin() + 1, DimExpr(1));
  return c.emit("Exp", {c.cast(scores, log_sum_exp.dtype()) - c.reshape(log_sum_exp, column)});
}

Grads loss_grad(GradContext& c) {
  Handle sum;
  if (c.dy(0))
    sum =
        c.emit("SoftmaxCrossEntropyLossGrad", {c.dy(), c.x(0), c.x(1), c.x(2), c.y(1)}, c.attrs());
  if (c.dy(1)) {  // from gradients of gradients
    Dims column = c.dy(1).dims();
    column.insert(column.begin() + 1, DimExpr(1));
    const Handle more = c.reshape(c.dy(1), column) * softmax_of(c, c.x(0), c.y(1));
    sum = sum ? sum + c.cast(more, sum.dtype()) : more;
  }
  return {sum};
}

// dscores = factor * p - t, with probabilities p and what depends on labels and weights alone: t,
// and per label factor = dloss * ((1 - s) w[label] + s / C sum(w)), which the mean divides by the
// sum of w[label]; 0 where the label is ignored. Of the shape of log_sum_exp with a class.
Handle probability_factor(GradContext& c) {
  const Handle labels = c.x(2), weights = c.x(3);
  const DType wide = c.x(4).dtype();
  const double smoothing = c.attrs().number("label_smoothing");
  const auto ignored = static_cast<double>(c.attrs().integer("ignore_index"));
  const Handle skip = c.emit("Equal", {labels, c.literal(ignored, labels.dtype())});
  const Handle zero = c.literal(0.0, wide);
  Handle weight = c.full(1.0, labels.dims(), wide), part = weight;
  if (weights) {
    const Handle wide_weights = c.cast(weights, wide);
    const Handle safe = c.emit("Where", {skip, c.literal(0.0, labels.dtype()), labels});
    weight = c.emit("Gather", {wide_weights, safe}, {{"axis", 0}});
    const Handle all = c.emit("ReduceMean", {wide_weights}, {{"axes", Dims()}, {"keepdims", 0}});
    part = weight * (1.0 - smoothing) + all * smoothing;
  }
  Handle factor = c.emit("Where", {skip, zero, part}) * c.cast(c.x(0), wide);
  if (c.attrs().string("reduction") == "mean")
    factor = factor / c.emit("ReduceSum", {c.emit("Where", {skip, zero, weight})},
                             {{"axes", Dims()}, {"keepdims", 0}});
  Dims column = labels.dims();
  column.insert(column.begin() + 1, DimExpr(1));
  return c.reshape(factor, column);
}

Grads loss_grad_grad(GradContext& c) {
  const Handle g = c.dy(), dloss = c.x(0), scores = c.x(1), log_sum_exp = c.x(4);
  Grads grads(5);
  if (c.needs(0)) {
    const Handle one = c.full(1.0, dloss.dims(), dloss.dtype());
    const Handle unit = c.emit("SoftmaxCrossEntropyLossGrad",
                               {one, scores, c.x(2), c.x(3), log_sum_exp}, c.attrs());
    const bool each = !dloss.dims().empty();
    grads[0] = c.emit("ReduceSum", {g * unit},
                      {{"axes", each ? Dims{DimExpr(1)} : Dims()}, {"keepdims", 0}});
  }
  if (c.needs(1)) {
    const Handle p = softmax_of(c, scores, log_sum_exp), wide = c.cast(g, p.dtype());
    const Handle mean =
        c.emit("ReduceSum", {wide * p}, {{"axes", Dims{DimExpr(1)}}, {"keepdims", 1}});
    grads[1] = probability_factor(c) * p * (wide - mean);
  }
  return grads;
}

// For targets that are class probabilities: -sum_c w_c * target_c * log_softmax(scores)_c
Values probabilities(TorchCall& t, Value* scores, Value* target, Value* weights) {
  const DType dtype = t.output().dtype;
  const int64_t axis = scores->rank() == 1 ? 0 : 1;
  const DimExpr& classes = scores->dims[static_cast<size_t>(axis)];
  const double smoothing = t.number_or("label_smoothing", 0.0);
  if (smoothing > 0.0) {
    Value* share = t.emit("Div", {t.literal(smoothing, dtype), t.size_literal(classes, dtype)});
    target = t.emit("Add", {t.emit("Mul", {target, t.literal(1.0 - smoothing, dtype)}), share});
  }
  Value* terms = t.emit("Mul", {t.emit("LogSoftmax", {scores}, {{"axis", axis}}), target});
  if (weights) {
    Dims dims(scores->rank(), DimExpr(1));
    dims[static_cast<size_t>(axis)] = classes;
    terms = t.emit("Mul", {terms, t.reshape(weights, dims)});
  }
  const int64_t reduction = t.integer_or("reduction", 1);
  const Dims axes = reduction == 0 ? Dims{axis} : Dims();
  Value* loss = t.emit("Neg", {t.emit("ReduceSum", {terms}, {{"axes", axes}, {"keepdims", 0}})});
  if (reduction != 1) return {loss};
  DimExpr count = 1;  // the mean is over all dims but the classes
  for (size_t i = 0; i < scores->rank(); ++i)
    if (static_cast<int64_t>(i) != axis) count = count * scores->dims[i];
  return {t.emit("Div", {loss, t.size_literal(count, dtype)})};
}

// The tensor that scores [N, C, ...] are a transposed view of, if it has the classes last: its rows
// are contiguous, and the loss can fuse with the product that computes them.
Value* with_classes_last(Value* scores) {
  const Node* transpose = scores->producer();
  if (!transpose || transpose->op != "Transpose") return nullptr;
  const std::vector<int64_t> perm = transpose->attrs.integers("perm");
  for (size_t i = 0; i < perm.size(); ++i) {
    const size_t from = i == 1 ? perm.size() - 1 : i - (i > 1 ? 1 : 0);
    if (perm[i] != static_cast<int64_t>(from)) return nullptr;
  }
  return transpose->input(0);
}

Values convert_cross_entropy(TorchCall& t) {
  static constexpr const char* kReductions[] = {"none", "mean", "sum"};
  require_real(t, true);
  Value* scores = t.tensor("self");
  Value* target = t.tensor("target");
  Value* weights = t.optional_tensor("weight");
  if (scores->rank() == 0) t.refuse("scores must have a class dimension");
  if (scores->dtype != t.output().dtype || (weights && weights->dtype != scores->dtype))
    t.refuse("scores, weights and loss must have the same type");
  if (is_floating(target->dtype)) {
    if (target->dtype != scores->dtype)
      t.refuse("scores and probabilities must have the same type");
    return probabilities(t, scores, target, weights);
  }
  if (target->dtype != DType::Int64) t.refuse("labels must be int64");
  const int64_t reduction = t.integer_or("reduction", 1);
  if (reduction < 0 || reduction > 2) t.refuse("unknown reduction");
  if (scores->rank() == 1) {  // one sample without a batch dimension
    scores = t.emit("Unsqueeze", {scores}, {{"axes", Dims{0}}});
    target = t.emit("Unsqueeze", {target}, {{"axes", Dims{0}}});
  }
  if (Value* rows = with_classes_last(scores)) {
    DimExpr count = 1;
    for (const DimExpr& dim : target->dims) count = count * dim;
    scores = t.reshape(rows, {count, rows->dims.back()});
    target = t.reshape(target, {count});
  }
  Value* loss = t.emit("SoftmaxCrossEntropyLoss", {scores, target, weights},
                       {{"ignore_index", t.integer_or("ignore_index", -100)},
                        {"reduction", kReductions[reduction]},
                        {"label_smoothing", t.number_or("label_smoothing", 0.0)}});
  return {t.reshape(loss, t.output().dims)};
}

const Attrs kAttrs = {{"ignore_index", -100}, {"reduction", "mean"}, {"label_smoothing", 0.0}};

// The uniform part of a smoothed loss, per label.
std::string uniform_loss(const OnnxRuleContext& c, const std::string& log_softmax) {
  std::string terms = log_softmax;
  if (c.has(2)) {
    Dims dims(c.value(0).rank() - 1, DimExpr(1));
    dims[0] = c.value(0).dims.at(1);
    terms = c.op("Mul", {terms, c.op("Reshape", {c.in(2), c.b.sizes(dims)})});
  }
  const std::string sum = c.op("ReduceSum", {terms, c.b.integers({1})}, {{"keepdims", int64_t{0}}});
  return c.op("Neg", {sum});
}

// loss = (1 - s) * nll + s / classes * uniform; the mean divides by the weights of labels not
// ignored.
void export_smoothed_loss(const OnnxRuleContext& c, double smoothing) {
  const DType dtype = c.dtype();
  const std::string reduction = c.attrs().string("reduction", "mean");
  const int64_t ignored = c.attrs().integer("ignore_index", -100);
  const std::string zero = c.number(0.0, dtype);
  const std::string log_softmax = c.op("LogSoftmax", {c.in(0)}, {{"axis", int64_t{1}}});
  const std::string skip =
      c.op("Equal", {c.in(1), c.number(static_cast<double>(ignored), c.dtype(1))});
  std::vector<std::string> nll_inputs{log_softmax, c.in(1)};
  if (c.has(2)) nll_inputs.push_back(c.in(2));
  const std::string nll = c.op("NegativeLogLikelihoodLoss", nll_inputs,
                               {{"ignore_index", ignored}, {"reduction", std::string("none")}});
  const std::string share = c.op(
      "Div", {c.number(smoothing, dtype), c.cast(c.b.size_scalar(c.value(0).dims.at(1)), dtype)});
  const std::string uniform = c.op("Where", {skip, zero, uniform_loss(c, log_softmax)});
  const std::string loss = c.op(
      "Add", {c.op("Mul", {nll, c.number(1.0 - smoothing, dtype)}), c.op("Mul", {uniform, share})});
  if (reduction == "none") return c.set(0, "Identity", {loss});
  const OnnxAttrs drop = {{"keepdims", int64_t{0}}};
  if (reduction == "sum") return c.set(0, "ReduceSum", {loss}, drop);
  std::string weight = c.number(1.0, dtype);
  if (c.has(2)) {
    const std::string some_label = c.number(0.0, c.dtype(1));  // ignore_index may be out of range
    weight = c.op("Gather", {c.in(2), c.op("Where", {skip, some_label, c.in(1)})});
  }
  const std::string total = c.op("ReduceSum", {c.op("Where", {skip, zero, weight})}, drop);
  c.set(0, "Div", {c.op("ReduceSum", {loss}, drop), total});
}

void export_cross_entropy(const OnnxRuleContext& c) {
  const double smoothing = c.attrs().number("label_smoothing", 0.0);
  if (c.wanted(1)) {
    const DType dtype = c.node.output(1)->dtype;
    const std::string scores = dtype == c.dtype() ? c.in(0) : c.cast(c.in(0), dtype);
    c.set(1, "ReduceLogSumExp", {scores, c.b.integers({1})}, {{"keepdims", int64_t{0}}});
  }
  if (smoothing != 0.0) return export_smoothed_loss(c, smoothing);
  c.set(0, "SoftmaxCrossEntropyLoss", c.ins(), c.pick({"ignore_index", "reduction"}));
}

REGISTER_OP(SoftmaxCrossEntropyLoss,
            {.inputs = {"scores", "labels", "weights?"},
             .outputs = {"loss", "log_sum_exp"},
             .attrs = kAttrs,
             .kind = OpKind::Norm,
             .infer = infer_loss,
             .grad = loss_grad,
             .non_differentiable = {1, 2},
             .onnx = {export_cross_entropy},
             .from_torch = {{"aten.cross_entropy_loss.default", convert_cross_entropy}}});

REGISTER_OP(SoftmaxCrossEntropyLossGrad,
            {.domain = "com.microsoft",
             .inputs = {"dloss", "scores", "labels", "weights?", "log_sum_exp"},
             .outputs = {"dscores"},
             .attrs = kAttrs,
             .kind = OpKind::Norm,
             .infer = infer_like<1>,
             .grad = loss_grad_grad,
             .non_differentiable = {2, 3, 4}});

}  // namespace
}  // namespace ortmodule
