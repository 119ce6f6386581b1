// y = (x - mean) * inv_std_dev * scale + bias with inv_std_dev = 1 / sqrt(var + epsilon), where the
// statistics are over a group of channels (dimension 1) of one image. Wu & He 2018,
// arXiv:1803.08494

#include <algorithm>

#include "onnx/onnx_normalization.h"
#include "ops/infer_rules.h"
#include "ops/norm_grad_grad.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// One number per image and group.
Dims statistics_dims(InferContext& c, const Value& x) {
  if (x.rank() < 2) c.fail(str("x must have rank 2 or more, but found ", x.rank()));
  const int64_t groups = c.attrs().integer("num_groups");
  const DimExpr& channels = x.dims[1];
  if (groups < 1 || (channels.is_constant() && channels.value() % groups != 0))
    c.fail(str("num_groups must divide the channels, but found ", groups, " groups of ",
               channels.text(), " channels"));
  return {x.dims[0], DimExpr(groups)};
}

void check_affine(InferContext& c, const Value& x, size_t operand) {
  if (!c.has_input(operand)) return;
  const Value& value = c.input(operand);
  if (!may_equal(value.dims, {x.dims[1]}) || value.dtype != x.dtype)
    c.fail(str("scale and bias must be ", name_of(x.dtype), dims_text({x.dims[1]}), ", but found ",
               name_of(value.dtype), dims_text(value.dims)));
}

void infer_group_norm(InferContext& c) {
  const Value& x = c.input(0);
  const Dims statistics = statistics_dims(c, x);
  check_affine(c, x, 1);
  check_affine(c, x, 2);
  c.set(0, x.dtype, x.dims);
  c.set(1, statistics_dtype(x.dtype), statistics);
  c.set(2, statistics_dtype(x.dtype), statistics);
}

void infer_group_norm_grad(InferContext& c) {
  const Value& x = c.input(1);
  c.set(0, x.dtype, x.dims);
  c.set(1, x.dtype, {x.dims.at(1)});
  c.set(2, x.dtype, {x.dims.at(1)});
}

// --- gradient ---------------------------------------------------------------------------------

// The gradient through the statistics, which torch returns, over the n elements of a group:
// d mean / dx = 1 / n and d inv_std_dev / dx = -inv_std_dev^3 (x - mean) / n.
Handle group_statistics_grad(GradContext& c) {
  const Dims& dims = c.x(0).dims();
  const DimExpr groups(c.attrs().integer("num_groups"));
  Dims grouped{dims[0], groups, DimExpr::floor_div(dims[1], groups)};
  grouped.insert(grouped.end(), dims.begin() + 2, dims.end());
  DimExpr elements = grouped[2];
  for (size_t d = 3; d < grouped.size(); ++d) elements = elements * grouped[d];
  Dims single(grouped.size(), DimExpr(1));
  std::copy_n(grouped.begin(), 2, single.begin());
  auto per_group = [&](Handle value) { return c.reshape(value, single); };
  const Handle count = c.size_literal(elements, c.y(2).dtype());
  Handle sum;
  if (c.dy(1)) sum = c.emit("Expand", {per_group(c.dy(1)) / count}, {{"shape", grouped}});
  if (c.dy(2)) {
    const Handle inv = per_group(c.y(2));
    const Handle deviation = c.cast(c.reshape(c.x(0), grouped), inv.dtype()) - per_group(c.y(1));
    const Handle term = -(deviation * (per_group(c.dy(2)) * inv * inv * inv / count));
    sum = sum ? sum + term : term;
  }
  return sum ? c.cast(c.reshape(sum, dims), c.x(0).dtype()) : sum;
}

Grads group_norm_grad(GradContext& c) {
  Grads grads(3);
  if (c.dy(0))
    grads = c.emit_all("GroupNormalizationGrad", {c.dy(), c.x(0), c.x(1), c.y(1), c.y(2)},
                       {{"num_groups", *c.attrs().find("num_groups")}});
  if (const Handle more = group_statistics_grad(c)) grads[0] = grads[0] ? grads[0] + more : more;
  return grads;
}

Grads group_norm_grad_grad(GradContext& c) {
  const Dims& dims = c.x(1).dims();
  const DimExpr groups(c.attrs().integer("num_groups"));
  Dims grouped{dims[0], groups, DimExpr::floor_div(dims[1], groups)}, axes{DimExpr(2)};
  for (size_t d = 2; d < dims.size(); ++d) {
    grouped.push_back(dims[d]);
    axes.emplace_back(static_cast<int64_t>(d + 1));
  }
  Dims single(grouped.size(), DimExpr(1)), per_channel(dims.size(), DimExpr(1));
  std::copy_n(grouped.begin(), 2, single.begin());
  per_channel[1] = dims[1];
  const auto to_elements = [&](Handle per_group) {
    return c.reshape(c.emit("Expand", {c.reshape(per_group, single)}, {{"shape", grouped}}), dims);
  };
  const Handle inv = to_elements(c.x(4)), x = in_statistics_type(c, c.x(1), 4);
  return norm_grad_grad(c,
                        {.normalized = (x - to_elements(c.x(3))) * inv,
                         .inv_std_dev = inv,
                         .mean =
                             [&](Handle value) {
                               return to_elements(c.emit("ReduceMean", {c.reshape(value, grouped)},
                                                         {{"axes", axes}, {"keepdims", 1}}));
                             },
                         .spread = [&](Handle value) { return c.reshape(value, per_channel); }});
}

// --- conversions ------------------------------------------------------------------------------

// With a 32-bit scale, 16-bit x is computed in 32 bits and the result rounded once, as in torch.
Values normalized(TorchCall& t, std::string_view groups) {
  require_real(t, true);
  Values values{t.tensor("input"), t.optional_tensor("weight"), t.optional_tensor("bias")};
  if (values[0]->rank() < 2) t.refuse("x must have a channel dimension");
  DType dtype = values[0]->dtype;
  for (const Value* value : values)
    if (value) dtype = promote(dtype, value->dtype);
  for (Value*& value : values)
    if (value) value = t.cast(value, dtype);
  Values y = t.emit_all("GroupNormalization", std::move(values),
                        {{"num_groups", t.integer(groups)}, {"epsilon", t.number_or("eps", 1e-5)}});
  for (size_t i = 0; i < t.outputs().size(); ++i) y[i] = t.cast(y[i], t.output(i).dtype);
  y.resize(t.outputs().size());
  return y;
}

Values convert_group_norm(TorchCall& t) { return normalized(t, "num_groups"); }

Values convert_native_group_norm(TorchCall& t) { return normalized(t, "group"); }

// ONNX's op does not return statistics and computes in float32.
void export_group_norm(const OnnxRuleContext& c) {
  const Dims& dims = c.value(0).dims;
  const DType inside = compute_dtype(c.dtype());
  if (!c.wanted(1) && !c.wanted(2) && inside != DType::Float64) {
    const Dims channels{dims.at(1)};
    return c.set(0, "GroupNormalization",
                 {c.in(0), scale_or(c, 1, channels, 1.0, c.dtype()),
                  scale_or(c, 2, channels, 0.0, c.dtype())},
                 c.pick({"num_groups", "epsilon"}));
  }
  const auto wide = [&](size_t i) { return in_type(c, i, inside); };
  const int64_t groups = c.attrs().integer("num_groups");
  const std::string x = c.op("Reshape", {wide(0), c.b.integers({0, groups, -1})});
  const Normalized n = normalized(c, x, {2}, inside, true);
  std::string y = c.op("Reshape", {n.y, c.b.sizes(dims)});
  std::vector<int64_t> per_channel(dims.size() - 1, 1);
  per_channel[0] = -1;
  auto spread = [&](size_t i) { return c.op("Reshape", {wide(i), c.b.integers(per_channel)}); };
  if (c.has(1)) y = c.op("Mul", {y, spread(1)});
  if (c.has(2)) y = c.op("Add", {y, spread(2)});
  const std::string pair = c.b.integers({0, groups});
  if (c.wanted(1)) c.set(1, "Reshape", {n.mean, pair});
  if (c.wanted(2)) c.set(2, "Reshape", {n.inverse, pair});
  set_in_type(c, y, inside);
}

REGISTER_OP(GroupNormalization,
            {.inputs = {"x", "scale?", "bias?"},
             .outputs = {"y", "mean", "inv_std_dev"},
             .attrs = {{"epsilon", 1e-5}},
             .kind = OpKind::Norm,
             .infer = infer_group_norm,
             .keeps_channels_last = always,
             .grad = group_norm_grad,
             .onnx = {export_group_norm},
             .from_torch = {{"aten.group_norm.default", convert_group_norm},
                            {"aten.native_group_norm.default", convert_native_group_norm}}});

REGISTER_OP(GroupNormalizationGrad, {.domain = "com.microsoft",
                                     .inputs = {"dy", "x", "scale?", "mean", "inv_std_dev"},
                                     .outputs = {"dx", "dscale", "dbias"},
                                     .kind = OpKind::Norm,
                                     .infer = infer_group_norm_grad,
                                     .grad = group_norm_grad_grad,
                                     .non_differentiable = {3, 4}});

REGISTER_ROW_AXES(rows_before<1>, "GroupNormalization");

}  // namespace
}  // namespace ortmodule
