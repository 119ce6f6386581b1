// Reductions, matrix products, normalizations, convolutions and the loss in ONNX.
#include <algorithm>

#include "onnx/onnx_rules.h"

namespace ortmodule {
namespace {

using C = const OnnxRuleContext&;

std::vector<int64_t> axes_from(int64_t first, size_t rank) {
  std::vector<int64_t> axes;
  for (int64_t i = first; i < static_cast<int64_t>(rank); ++i) axes.push_back(i);
  return axes;
}

std::string mean_over(C c, const std::string& x, const std::vector<int64_t>& axes, int64_t keep) {
  return c.op("ReduceMean", {x, c.b.integers(axes)}, {{"keepdims", keep}});
}

// ONNX's reductions take no small integers.
void lower_reduce(C c) {
  const Dims& axes = c.attrs().dims("axes");
  const OnnxAttrs attrs = {{"keepdims", c.attrs().integer("keepdims", 1)}};
  std::vector<std::string> inputs{c.in(0)};
  if (!axes.empty()) inputs.push_back(c.b.sizes(axes));
  const DType dtype = c.dtype();
  const bool small = size_of(dtype) < 4 && !is_floating(dtype);
  const bool extremum = c.node.op == "ReduceMax" || c.node.op == "ReduceMin";
  if (!small || (extremum && dtype != DType::Int16)) return c.set(0, c.node.op, inputs, attrs);
  inputs[0] = c.cast(inputs[0], DType::Int32);
  c.set(0, "Cast", {c.op(c.node.op, inputs, attrs)}, {{"to", c.node.output()->dtype}});
}

void lower_fused_matmul(C c) {
  auto flipped = [&](size_t i, std::string_view flag) {
    if (!c.attrs().flag(flag)) return c.in(i);
    std::vector<int64_t> perm = axes_from(0, c.value(i).rank());
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    return c.op("Transpose", {c.in(i)}, {{"perm", perm}});
  };
  const std::vector<std::string> inputs{flipped(0, "transA"), flipped(1, "transB")};
  const double alpha = c.attrs().number("alpha", 1.0);
  if (alpha == 1.0) return c.set(0, "MatMul", inputs);
  c.set(0, "Mul", {c.op("MatMul", inputs), c.number(alpha, c.dtype())});
}

void lower_bias_softmax(C c) {
  c.set(0, "Softmax", {c.op("Add", {c.in(0), c.in(1)})}, c.pick({"axis"}));
}

// A scale of ones for ops of ONNX that insist on one.
std::string scale_or(C c, size_t operand, const Dims& dims, double value, DType dtype) {
  if (c.has(operand)) return c.in(operand);
  const OnnxTensor one{dtype, {1}, encode_scalar(value, dtype)};
  return c.op("ConstantOfShape", {c.b.sizes(dims)}, {{"value", one}});
}

Dims normalized_dims(C c, int64_t axis) {
  const Dims& dims = c.value(0).dims;
  return Dims(dims.begin() + axis, dims.end());
}

struct Normalized {
  std::string y, mean, inverse;  // without scale and bias
};

// (x - mean) / sqrt(var + epsilon) over `axes`, spelled out in type `inside`; `centered` false
// leaves out mean.
Normalized normalized(C c, std::string x, const std::vector<int64_t>& axes, DType inside,
                      bool centered) {
  Normalized n;
  if (centered) {
    n.mean = mean_over(c, x, axes, 1);
    x = c.op("Sub", {x, n.mean});
  }
  const std::string variance = mean_over(c, c.op("Mul", {x, x}), axes, 1);
  const std::string shifted =
      c.op("Add", {variance, c.number(c.attrs().number("epsilon"), inside)});
  n.inverse = c.op("Reciprocal", {c.op("Sqrt", {shifted})});
  n.y = c.op("Mul", {x, n.inverse});
  return n;
}

std::string in_type(C c, size_t i, DType inside) {
  return c.dtype(i) == inside ? c.in(i) : c.cast(c.in(i), inside);
}

void set_in_type(C c, const std::string& y, DType inside) {
  if (inside == c.dtype())
    c.set(0, "Identity", {y});
  else
    c.set(0, "Cast", {y}, {{"to", c.dtype()}});
}

void lower_norm_by_hand(C c, int64_t axis, bool centered) {
  const DType inside = compute_dtype(c.dtype());
  const auto wide = [&](size_t i) { return in_type(c, i, inside); };
  const std::vector<int64_t> axes = axes_from(axis, c.value(0).rank());
  const Normalized n = normalized(c, wide(0), axes, inside, centered);
  std::string y = n.y;
  if (c.has(1)) y = c.op("Mul", {y, wide(1)});
  if (c.has(2)) y = c.op("Add", {y, wide(2)});
  const size_t statistics = centered ? 2 : 1;
  if (centered && c.wanted(1)) c.set(1, "Identity", {n.mean});
  if (c.wanted(statistics)) c.set(statistics, "Identity", {n.inverse});
  set_in_type(c, y, inside);
}

// ONNX's op gives no statistics and computes in float32.
void lower_group_norm(C c) {
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

// ONNX keeps statistics in float32, we in the type of computation.
void lower_layer_norm(C c) {
  const int64_t axis = c.axis("axis", c.value(0).rank());
  if (c.dtype() == DType::Float64) return lower_norm_by_hand(c, axis, true);
  std::vector<std::string> outputs{c.out(0)};
  for (size_t i = 1; i < 3; ++i) outputs.push_back(c.wanted(i) ? c.out(i) : "");
  while (outputs.back().empty()) outputs.pop_back();
  const std::string scale = scale_or(c, 1, normalized_dims(c, axis), 1.0, c.dtype());
  c.b.add("LayerNormalization", {c.in(0), scale, c.in(2)}, c.pick({"axis", "epsilon"}), outputs);
}

void lower_rms_norm(C c) {
  const int64_t axis = c.axis("axis", c.value(0).rank());
  if (c.wanted(1) || c.dtype() == DType::Float64) return lower_norm_by_hand(c, axis, false);
  const std::string scale = scale_or(c, 1, normalized_dims(c, axis), 1.0, c.dtype());
  c.set(0, "RMSNormalization", {c.in(0), scale}, c.pick({"axis", "epsilon"}));
}

void lower_batch_norm(C c) {
  const Dims channels{c.value(0).dims.at(1)};
  const DType dtype = c.value(3).dtype;
  c.set(0, "BatchNormalization",
        {c.in(0), scale_or(c, 1, channels, 1.0, dtype), scale_or(c, 2, channels, 0.0, dtype),
         c.in(3), c.in(4)},
        c.pick({"epsilon"}));
}

// What torch's training BatchNorm leaves behind: new = (1 - momentum) * old + momentum * batch,
// with the unbiased variance. ONNX's training mode has the momentum reversed and no correction.
void set_running_statistics(C c, const std::string& mean, const std::string& variance) {
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

void lower_batch_norm_training(C c) {
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

/// Along dimension `dim`: the place in its window that holds the positions `at` of x.
std::string place_along(const C& c, size_t dim, const std::string& at) {
  const size_t i = dim - 2;
  const auto attr = [&](std::string_view name) { return c.b.size_scalar(c.attrs().dims(name)[i]); };
  const std::string windows =
      c.op("Range", {c.number(0, DType::Int64), c.b.size_scalar(c.node.output(0)->dims[dim]),
                     c.number(1, DType::Int64)});
  std::string starts = c.op("Sub", {c.op("Mul", {windows, attr("strides")}), attr("pads")});
  if (dim == 2) starts = c.op("Reshape", {starts, c.b.integers({-1, 1})});
  return c.op("Div", {c.op("Sub", {at, starts}), attr("dilations")});
}

// ONNX's indices count through the whole tensor, ours within a plane; places within the window.
void lower_max_pool(C c) {
  const OnnxAttrs attrs = c.pick({"kernel_shape", "strides", "pads", "dilations", "ceil_mode"});
  if (!c.wanted(1) && !c.wanted(2)) return c.set(0, "MaxPool", {c.in(0)}, attrs);
  const std::string flat = c.b.fresh_name(c.out(0) + "/flat");
  c.b.add("MaxPool", {c.in(0)}, attrs, {c.out(0), flat});
  const Dims& dims = c.value(0).dims;
  const std::string index = c.op("Mod", {flat, c.b.size_scalar(dims[2] * dims[3])});
  if (c.wanted(1)) c.set(1, "Identity", {index});
  if (!c.wanted(2)) return;
  const std::string columns = c.b.size_scalar(dims[3]);
  const std::string row = place_along(c, 2, c.op("Div", {index, columns}));
  const std::string column = place_along(c, 3, c.op("Mod", {index, columns}));
  const std::string width = c.b.size_scalar(c.attrs().dims("kernel_shape")[1]);
  c.set(2, "Cast", {c.op("Add", {c.op("Mul", {row, width}), column})}, {{"to", DType::UInt8}});
}

// Places of y map to places of x by the scales if torch was given them, else by the sizes.
void lower_resize(C c) {
  const std::string mode = c.attrs().string("mode");
  const bool nearest = mode.starts_with("nearest"), exact = mode.starts_with("nearest_exact");
  const std::string corners = nearest && !exact                 ? "asymmetric"
                              : c.attrs().flag("align_corners") ? "align_corners"
                                                                : "half_pixel";
  const bool antialias = mode.ends_with("_aa");
  OnnxAttrs attrs = {{"mode", std::string(nearest                       ? "nearest"
                                          : mode.starts_with("bicubic") ? "cubic"
                                                                        : "linear")},
                     {"coordinate_transformation_mode", corners}};
  if (nearest)
    attrs.push_back({"nearest_mode", std::string(exact ? "round_prefer_ceil" : "floor")});
  if (mode.starts_with("bicubic")) attrs.push_back({"cubic_coeff_a", antialias ? -0.5 : -0.75});
  if (antialias) {  // torch's windows end where the image does
    attrs.push_back({"antialias", int64_t{1}});
    attrs.push_back({"exclude_outside", int64_t{1}});
  }
  const std::vector<double>& scales = c.attrs().numbers("scales");
  const bool by_scales = std::all_of(scales.begin(), scales.end(), [](double s) { return s != 0; });
  if (by_scales) {
    std::string bytes = encode_scalar(1.0, DType::Float32) + encode_scalar(1.0, DType::Float32);
    for (const double scale : scales) bytes += encode_scalar(scale, DType::Float32);
    const std::string factors =
        c.b.constant({DType::Float32, {static_cast<int64_t>(scales.size()) + 2}, bytes});
    return c.set(0, "Resize", {c.in(0), "", factors}, attrs);
  }
  Dims dims(c.value(0).dims.begin(), c.value(0).dims.begin() + 2);
  const Dims& sizes = c.attrs().dims("sizes");
  dims.insert(dims.end(), sizes.begin(), sizes.end());
  c.set(0, "Resize", {c.in(0), "", "", c.b.sizes(dims)}, attrs);
}

// The part of a smoothed loss that pulls towards all classes alike, per label.
std::string uniform_loss(C c, const std::string& log_softmax) {
  std::string terms = log_softmax;
  if (c.has(2)) {
    Dims dims(c.value(0).rank() - 1, DimExpr(1));
    dims[0] = c.value(0).dims.at(1);
    terms = c.op("Mul", {terms, c.op("Reshape", {c.in(2), c.b.sizes(dims)})});
  }
  const std::string sum = c.op("ReduceSum", {terms, c.b.integers({1})}, {{"keepdims", int64_t{0}}});
  return c.op("Neg", {sum});
}

// loss = (1 - s) * nll + s / classes * uniform, the mean over the weights of the labels that count.
void lower_smoothed_loss(C c, double smoothing) {
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
    const std::string some_label = c.number(0.0, c.dtype(1));  // an ignored one may lie outside
    weight = c.op("Gather", {c.in(2), c.op("Where", {skip, some_label, c.in(1)})});
  }
  const std::string total = c.op("ReduceSum", {c.op("Where", {skip, zero, weight})}, drop);
  c.set(0, "Div", {c.op("ReduceSum", {loss}, drop), total});
}

void lower_cross_entropy(C c) {
  const double smoothing = c.attrs().number("label_smoothing", 0.0);
  if (c.wanted(1)) {
    const DType dtype = c.node.output(1)->dtype;
    const std::string scores = dtype == c.dtype() ? c.in(0) : c.cast(c.in(0), dtype);
    c.set(1, "ReduceLogSumExp", {scores, c.b.integers({1})}, {{"keepdims", int64_t{0}}});
  }
  if (smoothing != 0.0) return lower_smoothed_loss(c, smoothing);
  c.set(0, "SoftmaxCrossEntropyLoss", c.ins(), c.pick({"ignore_index", "reduction"}));
}

const OnnxRuleRegistrar rules({
    {"ReduceSum", lower_reduce},
    {"ReduceMean", lower_reduce},
    {"ReduceMax", lower_reduce},
    {"ReduceMin", lower_reduce},
    {"ReduceProd", lower_reduce},
    {"ReduceL1", lower_reduce},
    {"ReduceL2", lower_reduce},
    {"ReduceLogSumExp", lower_reduce},
    {"ReduceSumSquare", lower_reduce},
    {"ArgMax", lower_directly, {"axis", "keepdims"}},
    {"ArgMin", lower_directly, {"axis", "keepdims"}},
    {"MatMul", lower_directly},
    {"Gemm", lower_directly, {"alpha", "beta", "transA", "transB"}},
    {"FusedMatMul", lower_fused_matmul},
    {"Softmax", lower_directly, {"axis"}},
    {"LogSoftmax", lower_directly, {"axis"}},
    {"BiasSoftmax", lower_bias_softmax},
    {"LayerNormalization", lower_layer_norm},
    {"SimplifiedLayerNormalization", lower_rms_norm},
    {"GroupNormalization", lower_group_norm},
    {"BatchNormalization", lower_batch_norm},
    {"BatchNormInternal", lower_batch_norm_training},
    {"Conv", lower_directly, {"strides", "pads", "dilations", "group"}},
    {"ConvTranspose", lower_directly, {"strides", "pads", "dilations", "group", "output_padding"}},
    {"MaxPool", lower_max_pool},
    {"AveragePool",
     lower_directly,
     {"kernel_shape", "strides", "pads", "dilations", "ceil_mode", "count_include_pad"}},
    {"GlobalAveragePool", lower_directly},
    {"Resize", lower_resize},
    {"SoftmaxCrossEntropyLoss", lower_cross_entropy},
});

}  // namespace
}  // namespace ortmodule
