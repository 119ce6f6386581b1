// y = (x - mean) * inv_std_dev * scale + bias over the dimensions from `axis`, with inv_std_dev =
// 1 / sqrt(var + epsilon); SkipLayerNormalization normalizes x + skip and also returns that sum. Ba
// et al. 2016, arXiv:1607.06450. Those with Cast in the name, made by fuse_norm_cast, round y to 16
// bits, or take dy in them; those with WithCast have y in both types, those with AddCast another
// part of dy in float32. The gradients with Skip in
// the name, made by fuse_skip_norm_grad, add dsum to dx.

#include "onnx/onnx_normalization.h"
#include "ops/infer_rules.h"
#include "ops/norm_grad_grad.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// Dims of the statistics: 1 in every normalized dimension.
Dims row_statistics_dims(InferContext& c, const Value& x) {
  Dims dims = x.dims;
  for (size_t d = static_cast<size_t>(c.axis("axis", x.rank())); d < dims.size(); ++d) dims[d] = 1;
  return dims;
}

Dims normalized_dims(InferContext& c, const Value& x) {
  return Dims(x.dims.begin() + c.axis("axis", x.rank()), x.dims.end());
}

void check_row_affine(InferContext& c, const Value& x, size_t operand) {
  if (!c.has_input(operand)) return;
  const Dims expected = normalized_dims(c, x);
  if (!may_equal(c.input(operand).dims, expected) || c.input(operand).dtype != x.dtype)
    c.fail(str("scale and bias must be ", name_of(x.dtype), dims_text(expected), ", but found ",
               name_of(c.input(operand).dtype), dims_text(c.input(operand).dims)));
}

void infer_layer_norm(InferContext& c) {
  const Value& x = c.input(0);
  check_row_affine(c, x, 1);
  check_row_affine(c, x, 2);
  const Dims statistics = row_statistics_dims(c, x);
  c.set(0, x.dtype, x.dims);
  c.set(1, statistics_dtype(x.dtype), statistics);
  c.set(2, statistics_dtype(x.dtype), statistics);
}

void infer_layer_norm_grad(InferContext& c) {
  const Value& x = c.input(1);
  c.set(0, x.dtype, x.dims);
  c.set(1, x.dtype, normalized_dims(c, x));
  c.set(2, x.dtype, normalized_dims(c, x));
}

void infer_skip_layer_norm_grad(InferContext& c) {
  check_added_gradient(c, 5);
  infer_layer_norm_grad(c);
}

void infer_skip_layer_norm(InferContext& c) {
  const Value& x = c.input(0);
  if (!may_equal(c.input(1).dims, x.dims) || c.input(1).dtype != x.dtype)
    c.fail("x and skip must have the same type and shape");
  check_row_affine(c, x, 2);
  check_row_affine(c, x, 3);
  const Dims statistics = row_statistics_dims(c, x);
  c.set(0, x.dtype, x.dims);
  c.set(1, statistics_dtype(x.dtype), statistics);
  c.set(2, statistics_dtype(x.dtype), statistics);
  c.set(3, x.dtype, x.dims);
}

void infer_layer_norm_cast(InferContext& c) {
  infer_layer_norm(c);
  set_rounded(c);
}

void infer_skip_layer_norm_cast(InferContext& c) {
  infer_skip_layer_norm(c);
  set_rounded(c);
}

// y stays in float32, and another output has it in the type that set_rounded checks.
void set_rounded_beside(InferContext& c, size_t output) {
  const Dims dims = c.node().output(0)->dims;
  set_rounded(c);
  c.set(0, DType::Float32, dims);
  c.set(output, c.attrs().dtype("to"), dims);
}

void infer_layer_norm_with_cast(InferContext& c) {
  infer_layer_norm(c);
  set_rounded_beside(c, 3);
}

void infer_skip_layer_norm_with_cast(InferContext& c) {
  infer_skip_layer_norm(c);
  set_rounded_beside(c, 4);
}

// --- gradients --------------------------------------------------------------------------------

std::vector<Handle> norm_grads(GradContext& c, Handle x, Handle scale) {
  return c.emit_all("LayerNormalizationGrad", {c.dy(), x, scale, c.y(1), c.y(2)},
                    {{"axis", *c.attrs().find("axis")}});
}

/// The gradient through the statistics over the n elements of a row, which gradients of gradients
/// reach: d mean / dx = 1 / n and d inv_std_dev / dx = -inv_std_dev^3 (x - mean) / n.
Handle row_statistics_grad(GradContext& c) {
  const Dims& dims = c.x(0).dims();
  DimExpr elements(1);
  for (const DimExpr& axis : normalized_axes(c, dims.size()))
    elements = elements * dims[static_cast<size_t>(axis.value())];
  const Handle count = c.size_literal(elements, c.y(2).dtype());
  Handle sum;
  if (c.dy(1)) sum = c.emit("Expand", {c.dy(1) / count}, {{"shape", dims}});
  if (c.dy(2)) {
    const Handle inv = c.y(2), deviation = c.cast(c.x(0), inv.dtype()) - c.y(1);
    const Handle term = -(deviation * (c.dy(2) * inv * inv * inv / count));
    sum = sum ? sum + term : term;
  }
  return sum;
}

Grads layer_norm_grad(GradContext& c) {
  Grads grads(3);
  if (c.dy(0)) grads = norm_grads(c, c.x(0), c.x(1));
  if (const Handle more = c.cast_if(row_statistics_grad(c), c.x(0).dtype()))
    grads[0] = grads[0] ? grads[0] + more : more;
  return grads;
}

Grads layer_norm_grad_grad(GradContext& c) {
  const Dims axes = normalized_axes(c, c.x(1).dims().size());
  const Handle inv = c.x(4), x = in_statistics_type(c, c.x(1), 4);
  return norm_grad_grad(
      c, {.normalized = (x - c.x(3)) * inv,
          .inv_std_dev = inv,
          .mean =
              [&](Handle value) {
                return c.emit("ReduceMean", {value}, {{"axes", axes}, {"keepdims", 1}});
              },
          .spread = [](Handle value) { return value; }});
}

// Output 3, the sum, depends only on x and skip.
bool skip_layer_norm_depends(size_t output, size_t operand) { return output != 3 || operand < 2; }

Grads skip_layer_norm_grad(GradContext& c) {
  Handle dsum = c.dy(3);
  Grads grads(4);
  if (c.dy(0)) {
    const std::vector<Handle> norm = norm_grads(c, c.y(3), c.x(2));
    dsum = dsum ? dsum + norm[0] : norm[0];
    grads[2] = norm[1];
    grads[3] = norm[2];
  }
  grads[0] = dsum;
  grads[1] = dsum;
  return grads;
}

// --- conversions ------------------------------------------------------------------------------

// With a 32-bit scale, 16-bit x is computed in 32 bits and the result rounded once, as in torch.
Values convert_layer_norm(TorchCall& t) {
  require_real(t, true);
  Value* x = t.tensor("input");
  Value* scale = t.optional_tensor("weight");
  Value* bias = t.optional_tensor("bias");
  const size_t count = t.dims("normalized_shape").size();
  if (count == 0 || count > x->rank()) t.refuse("normalized_shape must name trailing dimensions");
  DType dtype = x->dtype;
  if (scale) dtype = promote(dtype, scale->dtype);
  if (bias) dtype = promote(dtype, bias->dtype);
  auto in_type = [&](Value* value) { return value ? t.cast(value, dtype) : nullptr; };
  Values y = t.emit_all(
      "LayerNormalization", {in_type(x), in_type(scale), in_type(bias)},
      {{"axis", static_cast<int64_t>(x->rank() - count)}, {"epsilon", t.number_or("eps", 1e-5)}});
  for (size_t i = 0; i < t.outputs().size(); ++i) y[i] = t.cast(y[i], t.output(i).dtype);
  // Statistics have no gradient, as in torch.
  for (size_t i = 1; i < t.outputs().size(); ++i) y[i] = t.emit("Detach", {y[i]});
  y.resize(t.outputs().size());
  return y;
}

// ONNX computes statistics in float32, this op in the computation type.
void export_layer_norm(const OnnxRuleContext& c) {
  const int64_t axis = c.axis("axis", c.value(0).rank());
  if (c.dtype() == DType::Float64) return export_norm_in_parts(c, axis, true);
  std::vector<std::string> outputs{c.out(0)};
  for (size_t i = 1; i < 3; ++i) outputs.push_back(c.wanted(i) ? c.out(i) : "");
  while (outputs.back().empty()) outputs.pop_back();
  const std::string scale = scale_or(c, 1, normalized_dims(c, axis), 1.0, c.dtype());
  c.b.add("LayerNormalization", {c.in(0), scale, c.in(2)}, c.pick({"axis", "epsilon"}), outputs);
}

REGISTER_OP(LayerNormalization,
            {.inputs = {"x", "scale?", "bias?"},
             .outputs = {"y", "mean", "inv_std_dev"},
             .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_layer_norm,
             .grad = layer_norm_grad,
             .onnx = {export_layer_norm},
             .from_torch = {{"aten.layer_norm.default", convert_layer_norm},
                            {"aten.native_layer_norm.default", convert_layer_norm}}});

REGISTER_OP(LayerNormalizationGrad, {.domain = "com.microsoft",
                                     .inputs = {"dy", "x", "scale?", "mean", "inv_std_dev"},
                                     .outputs = {"dx", "dscale", "dbias"},
                                     .attrs = {{"axis", -1}},
                                     .kind = OpKind::Norm,
                                     .infer = infer_layer_norm_grad,
                                     .grad = layer_norm_grad_grad,
                                     .non_differentiable = {3, 4}});

REGISTER_OP(SkipLayerNormalization,
            {.domain = "com.microsoft",
             .inputs = {"x", "skip", "scale?", "bias?"},
             .outputs = {"y", "mean", "inv_std_dev", "sum"},
             .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_skip_layer_norm,
             .grad = skip_layer_norm_grad,
             .depends = skip_layer_norm_depends,
             .body = R"(skip_layer_norm (x, skip, scale, bias) => (y, mean, inv_std_dev, sum) {
               sum = Add (x, skip)
               y, mean, inv_std_dev = LayerNormalization<axis=@axis, epsilon=@epsilon>
                   (sum, scale, bias)
             })"});

REGISTER_OP(LayerNormalizationCast,
            {.domain = "com.microsoft",
             .inputs = {"x", "scale?", "bias?"},
             .outputs = {"y", "mean", "inv_std_dev"},
             .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_layer_norm_cast,
             .body = R"(layer_norm_cast (x, scale, bias) => (y, mean, inv_std_dev) {
               n, mean, inv_std_dev = LayerNormalization<axis=@axis, epsilon=@epsilon>
                   (x, scale, bias)
               y = Cast<to=@to> (n)
             })"});

REGISTER_OP(SkipLayerNormalizationCast, {.domain = "com.microsoft",
                                         .inputs = {"x", "skip", "scale?", "bias?"},
                                         .outputs = {"y", "mean", "inv_std_dev", "sum"},
                                         .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
                                         .kind = OpKind::Norm,
                                         .infer = infer_skip_layer_norm_cast,
                                         .body = R"(skip_layer_norm_cast (x, skip, scale, bias) =>
                   (y, mean, inv_std_dev, sum) {
               sum = Add (x, skip)
               y, mean, inv_std_dev =
                   LayerNormalizationCast<axis=@axis, epsilon=@epsilon, to=@to> (sum, scale, bias)
             })"});

REGISTER_OP(LayerNormalizationWithCast, {.domain = "com.microsoft",
                                         .inputs = {"x", "scale?", "bias?"},
                                         .outputs = {"y", "mean", "inv_std_dev", "rounded"},
                                         .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
                                         .kind = OpKind::Norm,
                                         .infer = infer_layer_norm_with_cast,
                                         .body = R"(layer_norm_with_cast (x, scale, bias) =>
                   (y, mean, inv_std_dev, rounded) {
               y, mean, inv_std_dev = LayerNormalization<axis=@axis, epsilon=@epsilon>
                   (x, scale, bias)
               rounded = Cast<to=@to> (y)
             })"});

REGISTER_OP(SkipLayerNormalizationWithCast,
            {.domain = "com.microsoft",
             .inputs = {"x", "skip", "scale?", "bias?"},
             .outputs = {"y", "mean", "inv_std_dev", "sum", "rounded"},
             .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_skip_layer_norm_with_cast,
             .body = R"(skip_layer_norm_with_cast (x, skip, scale, bias) =>
                   (y, mean, inv_std_dev, sum, rounded) {
               sum = Add (x, skip)
               y, mean, inv_std_dev, rounded =
                   LayerNormalizationWithCast<axis=@axis, epsilon=@epsilon, to=@to>
                   (sum, scale, bias)
             })"});

REGISTER_OP(CastLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "mean", "inv_std_dev"},
             .outputs = {"dx", "dscale", "dbias"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_layer_norm_grad,
             .body = R"(cast_layer_norm_grad (dy, x, scale, mean, inv_std_dev) =>
                   (dx, dscale, dbias) {
               wide = Cast<to=@to> (dy)
               dx, dscale, dbias = LayerNormalizationGrad<axis=@axis>
                   (wide, x, scale, mean, inv_std_dev)
             })"});

REGISTER_OP(AddCastLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "mean", "inv_std_dev", "more"},
             .outputs = {"dx", "dscale", "dbias"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_skip_layer_norm_grad,
             .body = R"(add_cast_layer_norm_grad (dy, x, scale, mean, inv_std_dev, more) =>
                   (dx, dscale, dbias) {
               wide = Cast<to=f32> (dy)
               sum = Add (wide, more)
               dx, dscale, dbias = LayerNormalizationGrad<axis=@axis>
                   (sum, x, scale, mean, inv_std_dev)
             })"});

// With 16 bits the sum is rounded once, the body's twice.
REGISTER_OP(SkipLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "mean", "inv_std_dev", "dsum"},
             .outputs = {"dx", "dscale", "dbias"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_skip_layer_norm_grad,
             .body = R"(skip_layer_norm_grad (dy, x, scale, mean, inv_std_dev, dsum) =>
                   (dx, dscale, dbias) {
               through, dscale, dbias = LayerNormalizationGrad<axis=@axis>
                   (dy, x, scale, mean, inv_std_dev)
               dx = Add (through, dsum)
             })",
             .indivisible = true});

REGISTER_OP(CastSkipLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "mean", "inv_std_dev", "dsum"},
             .outputs = {"dx", "dscale", "dbias"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_skip_layer_norm_grad,
             .body = R"(cast_skip_layer_norm_grad (dy, x, scale, mean, inv_std_dev, dsum) =>
                   (dx, dscale, dbias) {
               through, dscale, dbias = CastLayerNormalizationGrad<axis=@axis, to=@to>
                   (dy, x, scale, mean, inv_std_dev)
               dx = Add (through, dsum)
             })"});

REGISTER_ROW_AXES(rows_before_axis, "LayerNormalization", "LayerNormalizationCast",
                  "LayerNormalizationWithCast");

}  // namespace
}  // namespace ortmodule
