// y = x * inv_std_dev * scale over the dimensions from `axis`, with inv_std_dev = 1 /
// sqrt(mean(x^2) + epsilon). Zhang & Sennrich 2019, arXiv:1910.07467. Those with Cast in the name,
// made by fuse_norm_cast, round y to 16 bits, or take dy in them. The gradients with Skip in the
// name, made by fuse_skip_norm_grad, add dsum to dx.

#include <limits>

#include "onnx/onnx_normalization.h"
#include "ops/infer_rules.h"
#include "ops/norm_grad_grad.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_rms_norm(InferContext& c) {
  const Value& x = c.input(0);
  const auto axis = static_cast<size_t>(c.axis("axis", x.rank()));
  const Dims normalized(x.dims.begin() + static_cast<std::ptrdiff_t>(axis), x.dims.end());
  if (c.has_input(1) && (!may_equal(c.input(1).dims, normalized) || c.input(1).dtype != x.dtype))
    c.fail(str("scale must be ", name_of(x.dtype), dims_text(normalized), ", but found ",
               name_of(c.input(1).dtype), dims_text(c.input(1).dims)));
  Dims statistics = x.dims;
  for (size_t d = axis; d < statistics.size(); ++d) statistics[d] = 1;
  c.set(0, x.dtype, x.dims);
  c.set(1, statistics_dtype(x.dtype), std::move(statistics));
}

void infer_rms_norm_grad(InferContext& c) {
  const Value& x = c.input(1);
  c.set(0, x.dtype, x.dims);
  c.set(1, x.dtype, Dims(x.dims.begin() + c.axis("axis", x.rank()), x.dims.end()));
}

/// The gradient through inv_std_dev: -inv_std_dev^3 x / n for rows of n elements.
Handle statistic_grad(GradContext& c) {
  DimExpr elements(1);
  for (const DimExpr& axis : normalized_axes(c, c.x(0).dims().size()))
    elements = elements * c.x(0).dims()[static_cast<size_t>(axis.value())];
  const Handle inv = c.y(1), count = c.size_literal(elements, inv.dtype());
  return -(c.cast(c.x(0), inv.dtype()) * (c.dy(1) * inv * inv * inv / count));
}

Grads rms_norm_grad(GradContext& c) {
  Grads grads(2);
  if (c.dy(0))
    grads = c.emit_all("SimplifiedLayerNormalizationGrad", {c.dy(), c.x(0), c.x(1), c.y(1)},
                       {{"axis", *c.attrs().find("axis")}});
  if (c.dy(1)) {
    const Handle more = c.cast(statistic_grad(c), c.x(0).dtype());
    grads[0] = grads[0] ? grads[0] + more : more;
  }
  return grads;
}

Grads rms_norm_grad_grad(GradContext& c) {
  const Dims axes = normalized_axes(c, c.x(1).dims().size());
  const Handle inv = c.x(3);
  return norm_grad_grad(
      c, {.normalized = in_statistics_type(c, c.x(1), 3) * inv,
          .inv_std_dev = inv,
          .mean =
              [&](Handle value) {
                return c.emit("ReduceMean", {value}, {{"axes", axes}, {"keepdims", 1}});
              },
          .spread = [](Handle value) { return value; }});
}

Values convert_rms_norm(TorchCall& t) {
  require_real(t, true);
  Value* x = t.tensor("input");
  Value* scale = t.optional_tensor("weight");
  const size_t count = t.dims("normalized_shape").size();
  if (count == 0 || count > x->rank()) t.refuse("normalized_shape must name trailing dimensions");
  if (scale && scale->dtype != x->dtype) t.refuse("input and weight must have the same type");
  double epsilon = t.number_or("eps", 0.0);
  if (t.is_none("eps"))  // that of the type in which torch computes
    epsilon = x->dtype == DType::Float64 ? std::numeric_limits<double>::epsilon()
                                         : std::numeric_limits<float>::epsilon();
  return {t.emit("SimplifiedLayerNormalization", {x, scale},
                 {{"axis", static_cast<int64_t>(x->rank() - count)}, {"epsilon", epsilon}})};
}

void export_rms_norm(const OnnxRuleContext& c) {
  const int64_t axis = c.axis("axis", c.value(0).rank());
  if (c.wanted(1) || c.dtype() == DType::Float64) return export_norm_in_parts(c, axis, false);
  const std::string scale = scale_or(c, 1, normalized_dims(c, axis), 1.0, c.dtype());
  c.set(0, "RMSNormalization", {c.in(0), scale}, c.pick({"axis", "epsilon"}));
}

REGISTER_OP(SimplifiedLayerNormalization,
            {.domain = "com.microsoft",
             .inputs = {"x", "scale?"},
             .outputs = {"y", "inv_std_dev"},
             .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_rms_norm,
             .grad = rms_norm_grad,
             .onnx = {export_rms_norm},
             .from_torch = {{"aten.rms_norm.default", convert_rms_norm}}});

REGISTER_OP(SimplifiedLayerNormalizationGrad, {.domain = "com.microsoft",
                                               .inputs = {"dy", "x", "scale?", "inv_std_dev"},
                                               .outputs = {"dx", "dscale"},
                                               .attrs = {{"axis", -1}},
                                               .kind = OpKind::Norm,
                                               .infer = infer_rms_norm_grad,
                                               .grad = rms_norm_grad_grad,
                                               .non_differentiable = {3}});

void infer_rms_norm_cast(InferContext& c) {
  infer_rms_norm(c);
  set_rounded(c);
}

REGISTER_OP(SimplifiedLayerNormalizationCast,
            {.domain = "com.microsoft",
             .inputs = {"x", "scale?"},
             .outputs = {"y", "inv_std_dev"},
             .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_rms_norm_cast,
             .body = R"(rms_norm_cast (x, scale) => (y, inv_std_dev) {
               n, inv_std_dev = SimplifiedLayerNormalization<axis=@axis, epsilon=@epsilon>
                   (x, scale)
               y = Cast<to=@to> (n)
             })"});

void infer_rms_norm_with_cast(InferContext& c) {
  const Dims& dims = c.input(0).dims;
  infer_rms_norm_cast(c);
  c.set(0, DType::Float32, dims);
  c.set(2, c.attrs().dtype("to"), dims);
}

REGISTER_OP(SimplifiedLayerNormalizationWithCast,
            {.domain = "com.microsoft",
             .inputs = {"x", "scale?"},
             .outputs = {"y", "inv_std_dev", "rounded"},
             .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_rms_norm_with_cast,
             .body = R"(rms_norm_with_cast (x, scale) => (y, inv_std_dev, rounded) {
               y, inv_std_dev = SimplifiedLayerNormalization<axis=@axis, epsilon=@epsilon>
                   (x, scale)
               rounded = Cast<to=@to> (y)
             })"});

REGISTER_OP(CastSimplifiedLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "inv_std_dev"},
             .outputs = {"dx", "dscale"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_rms_norm_grad,
             .body = R"(cast_rms_norm_grad (dy, x, scale, inv_std_dev) => (dx, dscale) {
               wide = Cast<to=@to> (dy)
               dx, dscale = SimplifiedLayerNormalizationGrad<axis=@axis>
                   (wide, x, scale, inv_std_dev)
             })"});

void infer_skip_rms_norm_grad(InferContext& c) {
  check_added_gradient(c, 4);
  infer_rms_norm_grad(c);
}

REGISTER_OP(AddCastSimplifiedLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "inv_std_dev", "more"},
             .outputs = {"dx", "dscale"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_skip_rms_norm_grad,
             .body = R"(add_cast_rms_norm_grad (dy, x, scale, inv_std_dev, more) => (dx, dscale) {
               wide = Cast<to=f32> (dy)
               sum = Add (wide, more)
               dx, dscale = SimplifiedLayerNormalizationGrad<axis=@axis>
                   (sum, x, scale, inv_std_dev)
             })"});

// With 16 bits the sum is rounded once, the body's twice.
REGISTER_OP(SkipSimplifiedLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "inv_std_dev", "dsum"},
             .outputs = {"dx", "dscale"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_skip_rms_norm_grad,
             .body = R"(skip_rms_norm_grad (dy, x, scale, inv_std_dev, dsum) => (dx, dscale) {
               through, dscale = SimplifiedLayerNormalizationGrad<axis=@axis>
                   (dy, x, scale, inv_std_dev)
               dx = Add (through, dsum)
             })",
             .indivisible = true});

REGISTER_OP(CastSkipSimplifiedLayerNormalizationGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "x", "scale?", "inv_std_dev", "dsum"},
             .outputs = {"dx", "dscale"},
             .attrs = {{"axis", -1}},
             .kind = OpKind::Norm,
             .infer = infer_skip_rms_norm_grad,
             .body = R"(cast_skip_rms_norm_grad (dy, x, scale, inv_std_dev, dsum) => (dx, dscale) {
               through, dscale = CastSimplifiedLayerNormalizationGrad<axis=@axis, to=@to>
                   (dy, x, scale, inv_std_dev)
               dx = Add (through, dsum)
             })"});

REGISTER_ROW_AXES(rows_before_axis, "SimplifiedLayerNormalization",
                  "SimplifiedLayerNormalizationCast", "SimplifiedLayerNormalizationWithCast");

}  // namespace
}  // namespace ortmodule
