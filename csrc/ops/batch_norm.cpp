// y = (x - mean) / sqrt(var + epsilon) * scale + bias per channel (dimension 1). BatchNormInternal
// uses batch statistics and updates the running ones, BatchNormalization uses given statistics.
// Ioffe & Szegedy 2015, arXiv:1502.03167
// BatchNormRelu, BatchNormAddRelu and their gradients are made by fuse_batch_norm_relu, after the
// gradient.

#include <algorithm>

#include "ir/text.h"
#include "onnx/onnx_normalization.h"
#include "ops/infer_rules.h"
#include "ops/norm_grad_grad.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

Dims channel_dims(InferContext& c, const Value& x) {
  if (x.rank() < 2) c.fail(str("x must have rank 2 or more, but found ", x.rank()));
  return {x.dims[1]};
}

/// Operands per channel, behind x: scale, bias, mean and variance.
constexpr size_t kPerChannel = 4;

void check_channels(InferContext& c, const Dims& channels) {
  for (size_t i = 1; i < std::min(c.input_count(), kPerChannel + 1); ++i)
    if (c.has_input(i) && !may_equal(c.input(i).dims, channels))
      c.fail(str("per-channel operands must have the shape ", dims_text(channels), ", but found ",
                 dims_text(c.input(i).dims)));
}

void infer_eval(InferContext& c) {
  check_channels(c, channel_dims(c, c.input(0)));
  infer_same_as_input(c);
}

void infer_training(InferContext& c) {
  const Value& x = c.input(0);
  const Dims channels = channel_dims(c, x);
  check_channels(c, channels);
  // As in torch, statistics of 16-bit x are float32 if any operand per channel is.
  bool wider = false;
  for (size_t i = 1; i < std::min(c.input_count(), kPerChannel + 1); ++i)
    wider = wider || (c.has_input(i) && c.input(i).dtype != x.dtype);
  const DType statistics = wider ? statistics_dtype(x.dtype) : x.dtype;
  c.set(0, x.dtype, x.dims);
  c.set(1, c.has_input(3) ? c.input(3).dtype : statistics, channels);
  c.set(2, c.has_input(4) ? c.input(4).dtype : statistics, channels);
  c.set(3, statistics, channels);
  c.set(4, statistics, channels);
}

void infer_add_relu(InferContext& c) {
  infer_training(c);
  const Value &x = c.input(0), &addend = c.input(kPerChannel + 1);
  if (addend.dtype != x.dtype || !may_equal(addend.dims, x.dims))
    c.fail(str("addend must have type and shape of x, but found ", name_of(addend.dtype), " ",
               dims_text(addend.dims)));
}

void infer_grad(InferContext& c) {
  const Value& x = c.input(1);
  const DType dtype = c.has_input(2) ? c.input(2).dtype : x.dtype;
  c.set(0, x.dtype, x.dims);
  c.set(1, dtype, channel_dims(c, x));
  c.set(2, dtype, channel_dims(c, x));
}

void infer_add_relu_grad(InferContext& c) {
  const Value& x = c.input(3);
  for (size_t i : {0, 1, 2})
    if (!may_equal(c.input(i).dims, x.dims) || c.input(i).dtype != x.dtype)
      c.fail(str("dy, more and y must be as x, but found ", name_of(c.input(i).dtype),
                 dims_text(c.input(i).dims), " and ", name_of(x.dtype), dims_text(x.dims)));
  for (size_t i : {0, 1}) c.set(i, x.dtype, x.dims);
  for (size_t i : {2, 3}) c.set(i, c.input(5).dtype, channel_dims(c, x));
}

/// What broadcasts a value per channel to x, and the axes that share statistics.
struct Channels {
  explicit Channels(const Dims& x) : spread(x.size(), DimExpr(1)) {
    spread[1] = x[1];
    for (size_t d = 0; d < x.size(); ++d) {
      if (d == 1) continue;
      axes.emplace_back(static_cast<int64_t>(d));
      elements = elements * x[d];
    }
  }
  Dims spread;
  Dims axes;
  DimExpr elements = 1;
};

/// The gradient through the statistics, which gradients of gradients reach: d mean / dx = 1 / n
/// and d inv_std / dx = -inv_std^3 (x - mean) / n over the n elements of a channel.
Handle statistics_grad(GradContext& c) {
  const Channels channels(c.x(0).dims());
  const DType type = c.y(4).dtype();
  const Handle count = c.size_literal(channels.elements, type);
  const auto spread = [&](Handle value) { return c.reshape(value, channels.spread); };
  Handle sum;
  if (c.dy(3)) sum = c.emit("Expand", {spread(c.dy(3) / count)}, {{"shape", c.x(0).dims()}});
  if (c.dy(4)) {
    const Handle inv = spread(c.y(4)), deviation = c.cast(c.x(0), type) - spread(c.y(3));
    const Handle term = -(deviation * (spread(c.dy(4)) * inv * inv * inv / count));
    sum = sum ? sum + term : term;
  }
  return sum;
}

Grads training_grad(GradContext& c) {
  Grads grads(3);
  if (c.dy(0))
    grads = c.emit_all("BatchNormInternalGrad", {c.dy(), c.x(0), c.x(1), c.y(3), c.y(4)});
  if (const Handle more = c.cast_if(statistics_grad(c), c.x(0).dtype()))
    grads[0] = grads[0] ? grads[0] + more : more;
  return grads;
}

// The new running statistics are buffers, which have no gradient, and of which nothing else is
// made.
bool training_depends(size_t output, size_t operand) {
  return output != 1 && output != 2 && operand < 3;
}

Grads training_grad_grad(GradContext& c) {
  const Channels channels(c.x(1).dims());
  const auto spread = [&](Handle value) { return c.reshape(value, channels.spread); };
  const Handle inv = spread(c.x(4)), x = in_statistics_type(c, c.x(1), 4);
  return norm_grad_grad(
      c, {.normalized = (x - spread(c.x(3))) * inv,
          .inv_std_dev = inv,
          .mean =
              [&](Handle value) {
                return c.emit("ReduceMean", {value}, {{"axes", channels.axes}, {"keepdims", 1}});
              },
          .spread = spread});
}

// With given statistics y is affine in x.
Grads eval_grad(GradContext& c) {
  Dims per_channel(c.x(0).dims().size(), DimExpr(1));
  per_channel[1] = c.x(0).dims()[1];
  auto spread = [&](Handle value) { return c.reshape(value, per_channel); };
  const DType dtype = c.dy().dtype();
  const Handle inv = c.cast(c.emit("Rsqrt", {c.x(4) + c.attrs().number("epsilon")}), dtype);
  Grads grads(5);
  if (c.needs(0)) {
    const Handle factor = c.x(1) ? inv * c.cast(c.x(1), dtype) : inv;
    grads[0] = c.dy() * spread(factor);
  }
  if (c.needs(1)) {
    const Handle deviation = c.x(0) - spread(c.cast(c.x(3), dtype));
    const Handle sum = c.sum_to(c.dy() * deviation, per_channel);
    grads[1] = c.reshape(sum, c.x(1).dims()) * inv;
  }
  if (c.needs(2)) grads[2] = c.reshape(c.sum_to(c.dy(), per_channel), c.x(2).dims());
  return grads;
}

// Pointwise, so that it fuses with its neighbours: a factor and an offset for each channel, as in
// torch. Computed in 32 bits at least, since 16 would lose epsilon, and rounded once.
std::string eval_body(const Node& node) {
  const Value& x = *node.input(0);
  DType inside = compute_dtype(x.dtype);
  for (const Value* value : node.inputs())
    if (value) inside = promote(inside, value->dtype);
  std::string nodes;
  const auto add = [&](std::string_view name, const std::string& value) {
    nodes += str("  ", name, " = ", value, "\n");
    return std::string(name);
  };
  const auto wide = [&](std::string_view name, size_t operand) {
    if (node.input(operand)->dtype == inside) return std::string(name);
    return add(str("wide_", name), str("Cast<to=", name_of(inside), "> (", name, ")"));
  };
  std::string axes;  // behind the channels
  for (size_t d = 2; d < x.rank(); ++d) axes += str(d > 2 ? "," : "", d - 1);
  const auto spread = [&](const std::string& name) {
    if (axes.empty()) return name;
    return add(str("each_", name), str("Unsqueeze<axes=[", axes, "]> (", name, ")"));
  };
  const std::string epsilon = number_text(node.attrs.number("epsilon"));
  const std::string shifted = add("shifted", str("Add (", wide("var", 4), ", ", epsilon, ")"));
  std::string factor = add("factor", str("Rsqrt (", shifted, ")"));
  if (node.input(1)) factor = add("scaled", str("Mul (factor, ", wide("scale", 1), ")"));
  std::string offset = add("moved", str("Mul (", wide("mean", 3), ", ", factor, ")"));
  offset = node.input(2) ? add("offset", str("Sub (", wide("bias", 2), ", ", offset, ")"))
                         : add("offset", str("Neg (", offset, ")"));
  const std::string x_name = wide("x", 0);
  std::string y = add("product", str("Mul (", x_name, ", ", spread(factor), ")"));
  y = add("sum", str("Add (", y, ", ", spread(offset), ")"));
  if (inside != x.dtype) y = add("rounded", str("Cast<to=", name_of(x.dtype), "> (", y, ")"));
  return str("batch_norm (x, scale, bias, mean, var) => (", y, ") {\n", nodes, "}");
}

// --- conversions ------------------------------------------------------------------------------

// x, scale, bias, mean, var in one type: with 32-bit statistics, 16-bit x is computed in 32 bits
// and the result rounded once, as in torch.
Values operands(TorchCall& t) {
  require_real(t, true);
  Values values;
  DType dtype = t.tensor("input")->dtype;
  for (std::string_view name : {"input", "weight", "bias", "running_mean", "running_var"}) {
    values.push_back(t.optional_tensor(name));
    if (values.back()) dtype = promote(dtype, values.back()->dtype);
  }
  for (Value*& value : values)
    if (value) value = t.cast(value, dtype);
  return values;
}

// With given statistics the layer is pointwise and fuses with its neighbours. 16-bit x is computed
// in 32 bits, since 16 bits would lose epsilon.
Value* normalized(TorchCall& t) {
  Values v = operands(t);
  for (Value*& value : v)
    if (value) value = t.cast(value, compute_dtype(value->dtype));
  Value* x = v[0];
  if (!v[3] || !v[4]) t.refuse("statistics must be given");
  if (x->rank() < 2) t.refuse("x must have a channel dimension");
  Dims per_channel(x->rank(), DimExpr(1));
  per_channel[1] = x->dims[1];
  auto spread = [&](Value* value) { return t.reshape(value, per_channel); };
  Value* shifted = t.emit("Add", {v[4], t.literal(t.number("eps"), x->dtype)});
  Value* factor = t.emit("Rsqrt", {shifted});
  if (v[1]) factor = t.emit("Mul", {factor, v[1]});
  Value* y = t.emit("Mul", {t.emit("Sub", {x, spread(v[3])}), spread(factor)});
  if (v[2]) y = t.emit("Add", {y, spread(v[2])});
  return t.cast(y, t.output().dtype);
}

// Does not cast 16-bit x to 32-bit parameters and statistics: torch's kernel takes both.
Values trained(TorchCall& t) {
  const Attrs attrs = {{"epsilon", t.number("eps")}, {"momentum", t.number_or("momentum", 0.0)}};
  Values v = operands(t);
  Value* x = t.tensor("input");
  const DType statistics = statistics_dtype(x->dtype);
  if (statistics != x->dtype) {
    v[0] = x;
    for (size_t i = 1; i < v.size(); ++i)
      if (v[i]) v[i] = t.cast(v[i], statistics);
  }
  return t.emit_all("BatchNormInternal", std::move(v), attrs);
}

// Statistics have no gradient, as in torch.
Value* statistic(TorchCall& t, Value* value, size_t output) {
  if (t.outputs().size() <= output) return nullptr;
  return t.emit("Detach", {t.cast(value, t.output(output).dtype)});
}

// (y, saved mean, saved inv_std, new running mean, new running var); none are saved in eval mode.
Values convert_functional(TorchCall& t) {
  if (!t.flag("training"))
    return {normalized(t), nullptr, nullptr, statistic(t, t.tensor("running_mean"), 3),
            statistic(t, t.tensor("running_var"), 4)};
  const Values y = trained(t);
  return {t.cast(y[0], t.output().dtype), statistic(t, y[3], 1), statistic(t, y[4], 2),
          statistic(t, y[1], 3), statistic(t, y[2], 4)};
}

// Without running statistics the operator has no side effect.
Values convert_no_stats(TorchCall& t) {
  if (!t.flag("training")) t.refuse("statistics must be given");
  const Values y = trained(t);
  return {t.cast(y[0], t.output().dtype), statistic(t, y[3], 1), statistic(t, y[4], 2)};
}

Values convert_native(TorchCall& t) {
  if (!t.flag("training")) return {normalized(t), nullptr, nullptr};
  if (t.optional_tensor("running_mean")) t.refuse("it updates running statistics in place");
  return convert_no_stats(t);
}

Values convert_no_training(TorchCall& t) { return {normalized(t), nullptr, nullptr}; }

void export_batch_norm(const OnnxRuleContext& c) {
  const Dims channels{c.value(0).dims.at(1)};
  const DType dtype = c.value(3).dtype;
  c.set(0, "BatchNormalization",
        {c.in(0), scale_or(c, 1, channels, 1.0, dtype), scale_or(c, 2, channels, 0.0, dtype),
         c.in(3), c.in(4)},
        c.pick({"epsilon"}));
}

// Running statistics as in torch: new = (1 - momentum) * old + momentum * batch, with the unbiased
// variance. ONNX's training mode swaps the momentum factors and uses the biased variance.
void set_running_statistics(const OnnxRuleContext& c, const std::string& mean,
                            const std::string& variance) {
  const DType inside = compute_dtype(c.dtype());
  const double momentum = c.attrs().number("momentum");
  auto set_running = [&](size_t operand, size_t output, const std::string& batch) {
    const DType dtype = c.dtype(operand);
    const std::string old = dtype == inside ? c.in(operand) : c.cast(c.in(operand), inside);
    const std::string kept = c.op("Mul", {old, c.number(1.0 - momentum, inside)});
    const std::string added = c.op("Mul", {batch, c.number(momentum, inside)});
    c.set(output, "Cast", {c.op("Add", {kept, added})}, {{"to", dtype}});
  };
  if (c.has(3) && c.wanted(1)) set_running(3, 1, mean);
  if (!c.has(4) || !c.wanted(2)) return;
  Dims others = c.value(0).dims;
  others.erase(others.begin() + 1);
  const DimExpr count = product(others);
  const std::string n = c.cast(c.b.size_scalar(count), inside);
  const std::string less = c.cast(c.b.size_scalar(count - 1), inside);
  set_running(4, 2, c.op("Mul", {variance, c.op("Div", {n, less})}));
}

void export_batch_norm_training(const OnnxRuleContext& c) {
  const Dims& dims = c.value(0).dims;
  const DType inside = compute_dtype(c.dtype());
  const auto wide = [&](size_t i) { return in_type(c, i, inside); };
  std::vector<int64_t> axes = axes_from(1, dims.size());
  axes[0] = 0;
  Dims channel_dims(dims.size() - 1, DimExpr(1));
  channel_dims[0] = dims[1];
  const std::string shape = c.b.sizes(channel_dims);
  auto spread = [&](const std::string& v) { return c.op("Reshape", {v, shape}); };
  const std::string x = wide(0);
  const std::string mean = mean_over(c, x, axes, 0);
  const std::string centered = c.op("Sub", {x, spread(mean)});
  const std::string variance = mean_over(c, c.op("Mul", {centered, centered}), axes, 0);
  const std::string epsilon = c.number(c.attrs().number("epsilon"), inside);
  const std::string inverse =
      c.op("Reciprocal", {c.op("Sqrt", {c.op("Add", {variance, epsilon})})});
  std::string y = c.op("Mul", {centered, spread(inverse)});
  if (c.has(1)) y = c.op("Mul", {y, spread(wide(1))});
  if (c.has(2)) y = c.op("Add", {y, spread(wide(2))});
  set_running_statistics(c, mean, variance);
  if (c.wanted(3)) c.set(3, "Identity", {mean});
  if (c.wanted(4)) c.set(4, "Identity", {inverse});
  c.set(0, "Cast", {y}, {{"to", c.dtype()}});
}

REGISTER_OP(BatchNormalization,
            {.inputs = {"x", "scale?", "bias?", "mean", "var"},
             .outputs = {"y"},
             .attrs = {{"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_eval,
             .keeps_channels_last = always,
             .grad = eval_grad,
             .non_differentiable = {3, 4},
             .body_of = eval_body,
             .onnx = {export_batch_norm},
             .from_torch = {
                 {"aten.native_batch_norm.default", convert_native},
                 {"aten._native_batch_norm_legit_no_training.default", convert_no_training}}});

REGISTER_OP(BatchNormInternal,
            {.domain = "com.microsoft",
             .inputs = {"x", "scale?", "bias?", "running_mean?", "running_var?"},
             .outputs = {"y", "new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"},
             .attrs = {{"epsilon", 1e-5}, {"momentum", 0.1}},
             .kind = OpKind::Norm,
             .infer = infer_training,
             .keeps_channels_last = always,
             .grad = training_grad,
             .non_differentiable = {3, 4},
             .depends = training_depends,
             .onnx = {export_batch_norm_training},
             .from_torch = {
                 {"aten._native_batch_norm_legit_functional.default", convert_functional},
                 {"aten._native_batch_norm_legit.no_stats", convert_no_stats}}});

REGISTER_OP(BatchNormInternalGrad, {.domain = "com.microsoft",
                                    .inputs = {"dy", "x", "scale?", "saved_mean", "saved_inv_std"},
                                    .outputs = {"dx", "dscale", "dbias"},
                                    .kind = OpKind::Norm,
                                    .infer = infer_grad,
                                    .grad = training_grad_grad,
                                    .non_differentiable = {3, 4}});

REGISTER_OP(BatchNormRelu,
            {.domain = "com.microsoft",
             .inputs = {"x", "scale?", "bias?", "running_mean?", "running_var?"},
             .outputs = {"y", "new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"},
             .attrs = {{"epsilon", 1e-5}, {"momentum", 0.1}},
             .kind = OpKind::Norm,
             .infer = infer_training,
             .keeps_channels_last = always,
             .body = R"(batch_norm_relu (x, scale, bias, running_mean, running_var) =>
                   (y, new_running_mean, new_running_var, saved_mean, saved_inv_std) {
               n, new_running_mean, new_running_var, saved_mean, saved_inv_std =
                   BatchNormInternal<epsilon=@epsilon, momentum=@momentum>
                   (x, scale, bias, running_mean, running_var)
               y = Relu (n)
             })"});

REGISTER_OP(BatchNormAddRelu,
            {.domain = "com.microsoft",
             .inputs = {"x", "scale?", "bias?", "running_mean?", "running_var?", "addend"},
             .outputs = {"y", "new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"},
             .attrs = {{"epsilon", 1e-5}, {"momentum", 0.1}},
             .kind = OpKind::Norm,
             .infer = infer_add_relu,
             .keeps_channels_last = always,
             .body = R"(batch_norm_add_relu (x, scale, bias, running_mean, running_var, addend) =>
                   (y, new_running_mean, new_running_var, saved_mean, saved_inv_std) {
               n, new_running_mean, new_running_var, saved_mean, saved_inv_std =
                   BatchNormInternal<epsilon=@epsilon, momentum=@momentum>
                   (x, scale, bias, running_mean, running_var)
               sum = Add (n, addend)
               y = Relu (sum)
             })"});

// Of BatchNormRelu. The sign of its y is computed again from x, which is read anyway.
REGISTER_OP(BatchNormReluGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "bias?", "saved_mean", "saved_inv_std"},
             .outputs = {"dx", "dscale", "dbias"},
             .kind = OpKind::Norm,
             .infer = infer_grad});

// Of BatchNormAddRelu, whose y has two readers' gradients: dz = ReluGrad(dy + more, y) is that of
// the addend, and the norm's, of which the others are. The sign of y is not computed again, as that
// would need the addend.
REGISTER_OP(BatchNormAddReluGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "more", "y", "x", "scale?", "saved_mean", "saved_inv_std"},
             .outputs = {"dz", "dx", "dscale", "dbias"},
             .kind = OpKind::Norm,
             .infer = infer_add_relu_grad});

RowAxes norm_rows(const RowQuery& query) { return rows_beside(query, 1); }
REGISTER_ROW_AXES(norm_rows, "BatchNormalization");

}  // namespace
}  // namespace ortmodule
