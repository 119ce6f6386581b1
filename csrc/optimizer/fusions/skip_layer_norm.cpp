// LayerNormalization(x + skip): the sum is written once, for the norm, the residual stream and the
// gradient alike.

#include "ops/op_def.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

void infer_skip(InferContext& c) {
  const Value& x = c.input(0);
  const Value& skip = c.input(1);
  if (x.dims != skip.dims)
    c.fail(str("x and skip must have equal dims, but found ", x.name, " and ", skip.name));
  const auto axis = static_cast<size_t>(c.axis("axis", x.rank()));
  const DType stats = x.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  Dims rows = x.dims;
  for (size_t i = axis; i < rows.size(); ++i) rows[i] = 1;
  c.set(0, x.dtype, x.dims);
  c.set(1, stats, rows);
  c.set(2, stats, rows);
  c.set(3, x.dtype, x.dims);
}

Grads grad(GradContext& c) {
  Handle dsum = c.dy(3);
  Handle dscale;
  Handle dbias;
  if (c.dy(0)) {
    const std::vector<Handle> grads =
        c.emit_all("LayerNormalizationGrad", {c.dy(0), c.y(3), c.x(2), c.y(1), c.y(2)},
                   {{"axis", c.attrs().dim("axis")}});
    dsum = dsum ? grads[0] + dsum : grads[0];
    if (c.x(2)) dscale = grads[1];
    if (c.x(3)) dbias = grads[2];
  }
  return {dsum, dsum, dscale, dbias};
}

Reason reject(const Match& match) {
  if (match.dims("x") != match.dims("sum")) return "x is broadcast";
  if (match.dims("skip") != match.dims("sum")) return "skip is broadcast";
  return {};
}

const std::vector<RewriteRule> kRules = {
    {.name = "SkipLayerNormalization", .fused_op = "SkipLayerNormalization", .reject = reject}};

}  // namespace

REGISTER_OP(
    SkipLayerNormalization,
    {
        .domain = "com.microsoft",
        .inputs = {"x", "skip", "scale?", "bias?"},
        .outputs = {"y", "mean", "inv_std_dev", "sum"},
        .attrs = {{"axis", -1}, {"epsilon", 1e-5}},
        .kind = OpKind::Norm,
        .infer = infer_skip,
        .grad = grad,
        .body = R"(SkipLayerNormalization (x, skip, scale, bias) => (y, mean, inv_std_dev, sum) {
      sum = Add (x, skip)
      y, mean, inv_std_dev = LayerNormalization<axis=@axis, epsilon=@epsilon> (sum, scale, bias)
    })",
    });

REGISTER_FUSION(fuse_skip_layer_norm, kRules);

}  // namespace ortmodule
