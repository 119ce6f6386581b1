// Views and ops that move elements in ONNX: sizes become tensors.
#include "onnx/onnx_rules.h"

namespace ortmodule {
namespace {

using C = const OnnxRuleContext&;

void lower_identity(C c) { c.set(0, "Identity", {c.in(0)}); }

void lower_reshape(C c) {
  const Dims& shape = c.attrs().dims("shape");
  bool may_be_zero = false;  // 0 would mean "as in the input"
  for (const DimExpr& dim : shape) may_be_zero |= !dim.is_constant() || dim.value() == 0;
  OnnxAttrs attrs;
  if (may_be_zero) attrs.emplace_back("allowzero", int64_t{1});
  c.set(0, "Reshape", {c.in(0), c.b.sizes(shape)}, attrs);
}

void lower_expand(C c) { c.set(0, "Expand", {c.in(0), c.b.sizes(c.attrs().dims("shape"))}); }

void lower_axes_operand(C c) {  // Squeeze, Unsqueeze
  c.set(0, c.node.op, {c.in(0), c.b.sizes(c.attrs().dims("axes"))});
}

void lower_squeeze(C c) {
  if (c.attrs().dims("axes").empty()) return c.set(0, "Identity", {c.in(0)});
  lower_axes_operand(c);
}

void lower_slice(C c) {
  c.set(0, "Slice",
        {c.in(0), c.b.size(c.attrs().dim("start")), c.b.size(c.attrs().dim("end")),
         c.b.size(c.attrs().dim("axis")), c.b.size(c.attrs().dim("step"))});
}

void lower_split(C c) {
  std::vector<std::string> outputs;
  for (size_t i = 0; i < c.node.outputs().size(); ++i) outputs.push_back(c.out(i));
  c.b.add("Split", {c.in(0), c.b.sizes(c.attrs().dims("sizes"))}, c.pick({"axis"}), outputs);
}

void lower_concat(C c) { c.set(0, "Concat", c.ins(), c.pick({"axis"})); }

void lower_tile(C c) { c.set(0, "Tile", {c.in(0), c.b.sizes(c.attrs().dims("repeats"))}); }

void lower_trilu(C c) {
  c.set(0, "Trilu", {c.in(0), c.b.size_scalar(c.attrs().dim("k"))}, c.pick({"upper"}));
}

void lower_cum_sum(C c) {
  c.set(0, "CumSum", {c.in(0), c.b.size_scalar(c.attrs().dim("axis"))},
        c.pick({"exclusive", "reverse"}));
}

void lower_pad(C c) {
  const double value = c.attrs().number("value", 0.0);
  c.set(0, "Pad", {c.in(0), c.b.sizes(c.attrs().dims("pads")), c.number(value, c.dtype())},
        c.pick({"mode"}));
}

// ONNX counts in float32, float64, int16, int32 and int64.
void lower_range(C c) {
  const DType dtype = c.attrs().dtype("dtype");
  const bool known = size_of(dtype) >= 4 || dtype == DType::Int16;
  const DType inside = known ? dtype : compute_dtype(is_floating(dtype) ? dtype : DType::Int32);
  auto bound = [&](std::string_view name) {
    const auto* dim = std::get_if<DimExpr>(c.attrs().find(name));
    if (!dim || dim->is_constant()) return c.number(c.attrs().number(name), inside);
    const std::string size = c.b.size_scalar(*dim);
    return inside == DType::Int64 ? size : c.cast(size, inside);
  };
  const std::vector<std::string> bounds{bound("start"), bound("limit"), bound("delta")};
  if (known) return c.set(0, "Range", bounds);
  c.set(0, "Cast", {c.op("Range", bounds)}, {{"to", dtype}});
}

void lower_constant_of_shape(C c) {
  const DType dtype = c.attrs().dtype("dtype");
  const auto* dim = std::get_if<DimExpr>(c.attrs().find("value"));
  if (dim && !dim->is_constant()) {
    const std::string size = c.b.size_scalar(*dim);
    const std::string value = dtype == DType::Int64 ? size : c.cast(size, dtype);
    return c.set(0, "Expand", {value, c.b.sizes(c.attrs().dims("shape"))});
  }
  const OnnxTensor value{dtype, {1}, encode_scalar(c.attrs().number("value"), dtype)};
  c.set(0, "ConstantOfShape", {c.b.sizes(c.attrs().dims("shape"))}, {{"value", value}});
}

// An identity for the values; the gradient's body has no meaning to other readers.
void lower_custom_gradient(C c) {
  for (size_t i = 0; i < c.node.outputs().size(); ++i) c.set(i, "Identity", {c.in(i)});
}

void lower_top_k(C c) {
  c.b.add("TopK", {c.in(0), c.b.sizes({c.attrs().dim("k")})}, c.pick({"axis", "largest", "sorted"}),
          {c.out(0), c.out(1)});
}

void lower_sort(C c) {
  const Dims& dims = c.value(0).dims;
  const int64_t axis = c.axis("axis", dims.size());
  c.b.add("TopK", {c.in(0), c.b.sizes({dims[static_cast<size_t>(axis)]})},
          {{"axis", axis}, {"largest", c.attrs().integer("descending", 0)}}, {c.out(0), c.out(1)});
}

const OnnxRuleRegistrar rules({{"Identity", lower_identity},
                               {"Detach", lower_identity},
                               {"Contiguous", lower_identity},
                               {"ChannelsLast", lower_identity},
                               {"Reshape", lower_reshape},
                               {"Expand", lower_expand},
                               {"Unsqueeze", lower_axes_operand},
                               {"Squeeze", lower_squeeze},
                               {"Transpose", lower_directly, {"perm"}},
                               {"Slice", lower_slice},
                               {"Split", lower_split},
                               {"Concat", lower_concat},
                               {"Gather", lower_directly, {"axis"}},
                               {"GatherElements", lower_directly, {"axis"}},
                               {"GatherND", lower_directly, {"batch_dims"}},
                               {"ScatterElements", lower_directly, {"axis", "reduction"}},
                               {"ScatterND", lower_directly, {"reduction"}},
                               {"TopK", lower_top_k},
                               {"Sort", lower_sort},
                               {"Tile", lower_tile},
                               {"Trilu", lower_trilu},
                               {"CumSum", lower_cum_sum},
                               {"Pad", lower_pad},
                               {"Range", lower_range},
                               {"ConstantOfShape", lower_constant_of_shape},
                               {"CustomGradient", lower_custom_gradient}});

}  // namespace
}  // namespace ortmodule
