// y = activation(Conv(x, w, bias) + z). Made by fuse_conv where nothing trains. `activation` is the
// name of a pointwise op or empty; `alpha` and `beta` are its numbers: the bounds of Clip
// (infinite: none), the slope of LeakyRelu and Elu.

#include <cmath>
#include <limits>
#include <utility>

#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_fused_conv(InferContext& c) {
  op_def("Conv").infer(c);
  const Value& y = *c.node().output();
  if (c.has_input(3) && (c.input(3).dtype != y.dtype || !may_equal(c.input(3).dims, y.dims)))
    c.fail(str("z must be ", name_of(y.dtype), dims_text(y.dims), ", but found ",
               name_of(c.input(3).dtype), dims_text(c.input(3).dims)));
}

double fused_conv_flops(const Attrs& attrs, const std::vector<Sizes>& in,
                        const std::vector<Sizes>& out) {
  return op_def("Conv").flops(attrs, in, out);
}

std::string activation_text(const Attrs& attrs) {
  const std::string& name = attrs.string("activation");
  const double alpha = attrs.number("alpha"), beta = attrs.number("beta");
  std::string given;
  const auto add = [&](std::string_view key, double value) {
    given += str(given.empty() ? "" : ", ", key, "=", number_text(value));
  };
  if (name == "Clip") {
    if (alpha != -std::numeric_limits<double>::infinity()) add("min", alpha);
    if (beta != std::numeric_limits<double>::infinity()) add("max", beta);
  } else if (name == "LeakyRelu" || name == "Elu") {
    add("alpha", alpha);
  }
  return given.empty() ? name : str(name, "<", given, ">");
}

std::string fused_conv_body(const Node& node) {
  const bool adds = node.input(3) != nullptr, bends = !node.attrs.string("activation").empty();
  const std::string_view packed =
      node.attrs.has("packed_outputs") ? ", packed_outputs=@packed_outputs" : "";
  std::string nodes =
      str("product = Conv<group=@group, strides=@strides, pads=@pads, dilations=@dilations", packed,
          "> (x, w, bias)");
  std::string y = "product";
  if (adds) nodes += str("  sum = Add (", std::exchange(y, "sum"), ", z)");
  if (bends)
    nodes += str("  bent = ", activation_text(node.attrs), " (", std::exchange(y, "bent"), ")");
  return str("fused_conv (x, w, bias, z) => (", y, ") { ", nodes, " }");
}

REGISTER_OP(FusedConv, {.domain = "com.microsoft",
                        .inputs = {"x", "w", "bias?", "z?"},
                        .outputs = {"y"},
                        .attrs = {{"group", 1}, {"activation", ""}, {"alpha", 0.0}, {"beta", 0.0}},
                        .kind = OpKind::MatMul,
                        .infer = infer_fused_conv,
                        .keeps_channels_last = always,
                        .flops = fused_conv_flops,
                        .body_of = fused_conv_body,
                        .indivisible = true});

}  // namespace
}  // namespace ortmodule
