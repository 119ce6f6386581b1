// Import of products, normalizations and softmax.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

std::vector<int64_t> axes_from(int64_t first, size_t rank) {
  std::vector<int64_t> axes(rank - static_cast<size_t>(first));
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

// `value` [C] as [1, C, 1, ...] for an x of that rank.
Value* per_channel(OnnxCall& c, Value* value, size_t rank) {
  Dims dims(rank, DimExpr(1));
  dims.at(rank == 1 ? 0 : 1) = product(value->dims);  // a vector is one channel
  return c.reshape(value, dims);
}

// Without `spatial`, before operator set 9, each place of each channel has a value of its own.
Value* per_feature(OnnxCall& c, Value* value, size_t rank) {
  if (c.opset() >= 9 || c.flag("spatial", true)) return per_channel(c, value, rank);
  if (value->rank() + 1 != rank) c.refuse("without spatial there must be a value for each place");
  Dims dims = value->dims;
  dims.insert(dims.begin(), DimExpr(1));
  return c.reshape(value, dims);
}

// ---- products ----------------------------------------------------------------------------------

// numpy.matmul: vectors get a dimension, which the result loses.
Value* matmul(OnnxCall& c, Value* a, Value* b) {
  const bool row = a->rank() == 1, column = b->rank() == 1;
  if (a->rank() == 0 || b->rank() == 0) c.refuse("operands must have a dimension");
  if (row) a = c.reshape(a, {1, a->dims.at(0)});
  if (column) b = c.reshape(b, {b->dims.at(0), 1});
  if (!c.sizes().equal(a->dims.at(a->dims.size() - 1), b->dims.at(b->rank() - 2)))
    c.refuse(
        str("inner sizes must agree, but found ", dims_text(a->dims), " and ", dims_text(b->dims)));
  Value* y = c.emit("MatMul", {a, b});
  if (!row && !column) return y;
  Dims dims = y->dims;
  if (column) dims.pop_back();
  if (row) dims.erase(dims.end() - (column ? 1 : 2));
  return c.reshape(y, dims);
}

// Sums of products of unsigned integers have the bits of signed ones.
Values import_matmul(OnnxCall& c) {
  Value *a = c.in(0), *b = c.in(1);
  if (!is_wide_unsigned(a->dtype)) return {matmul(c, a, b)};
  return {c.cast(matmul(c, c.cast(a, DType::Int64), c.cast(b, DType::Int64)), a->dtype)};
}

Values import_standard_gemm(OnnxCall& c) {
  Value* bias = c.optional(2);
  const double beta = c.number("beta", 1.0);
  if (beta == 0.0) bias = nullptr;
  const Attrs attrs{{"alpha", c.number("alpha", 1.0)},
                    {"beta", beta},
                    {"transA", c.integer("transA", 0)},
                    {"transB", c.integer("transB", 0)}};
  return {c.emit("Gemm", {c.in(0), c.in(1), bias}, attrs)};
}

// x with its first dimension before the last: the other batches come first.
Value* first_as_row(OnnxCall& c, Value* x) {
  if (x->rank() < 3) return x;
  std::vector<int64_t> order = axes_from(1, x->rank());
  order.insert(order.end() - 1, 0);
  return c.transpose(x, order);
}

Values import_fused_matmul(OnnxCall& c) {
  Value *a = c.in(0), *b = c.in(1);
  if (c.flag("transBatchA")) a = first_as_row(c, a);
  if (c.flag("transBatchB")) b = first_as_row(c, b);
  return {c.emit("FusedMatMul", {a, b},
                 {{"alpha", c.number("alpha", 1.0)},
                  {"transA", c.integer("transA", 0)},
                  {"transB", c.integer("transB", 0)}})};
}

// ---- normalizations ----------------------------------------------------------------------------

// Statistics of this batch (the population variance), and the running ones.
Values import_batch_norm_training(OnnxCall& c) {
  Value* x = c.in(0);
  std::vector<int64_t> axes = axes_from(1, x->rank());
  axes.at(0) = 0;
  Value* mean = c.reduce("ReduceMean", x, axes, true);
  Value* centred = c.emit("Sub", {x, mean});
  Value* variance = c.reduce("ReduceMean", c.emit("Mul", {centred, centred}), axes, true);
  const double momentum = c.number("momentum", 0.9);
  Value* shifted = c.emit("Add", {variance, number(c, c.number("epsilon", 1e-5), variance)});
  Value* normalized = c.emit("Mul", {centred, c.emit("Rsqrt", {shifted})});
  Value* y = c.emit("Mul", {normalized, per_channel(c, c.cast(c.in(1), x->dtype), x->rank())});
  y = c.emit("Add", {y, per_channel(c, c.cast(c.in(2), x->dtype), x->rank())});
  auto running = [&](size_t i, Value* current) {
    Value* old = c.in(i);
    Value* now = c.cast(c.reshape(current, old->dims), old->dtype);
    return c.emit("Add", {c.emit("Mul", {old, number(c, momentum, old)}),
                          c.emit("Mul", {now, number(c, 1 - momentum, now)})});
  };
  Values results = {y, running(3, mean), running(4, variance)};
  if (c.opset() < 14) {  // what a gradient would read, as onnxruntime has it
    results.push_back(c.cast(c.reshape(mean, c.in(3)->dims), c.in(3)->dtype));
    results.push_back(c.cast(c.reshape(c.emit("Rsqrt", {shifted}), c.in(4)->dims), c.in(4)->dtype));
  }
  return results;
}

// Before operator set 14, and without is_test before 7, further outputs say it.
bool trains(const OnnxCall& c) {
  if (c.opset() >= 14) return c.flag("training_mode");
  return c.wants_output(1) && !(c.opset() < 7 && c.flag("is_test"));
}

// (x - mean) * (scale / sqrt(var + epsilon)) + bias, in 32 bits where x has 16.
Values import_batch_norm(OnnxCall& c) {
  if (trains(c)) return import_batch_norm_training(c);
  Value* x = c.in(0);
  const DType dtype = x->dtype, wide = compute_dtype(dtype);
  auto in = [&](size_t i) { return c.cast(c.in(i), wide); };
  Value* variance = in(4);
  Value* shifted = c.emit("Add", {variance, number(c, c.number("epsilon", 1e-5), variance)});
  Value* factor = c.emit("Mul", {c.emit("Rsqrt", {shifted}), in(1)});
  Value* offset = c.emit("Sub", {in(2), c.emit("Mul", {in(3), factor})});
  Value* scaled = c.emit("Mul", {c.cast(x, wide), per_feature(c, factor, x->rank())});
  Value* y = c.emit("Add", {scaled, per_feature(c, offset, x->rank())});
  return {c.cast(y, dtype)};
}

Values import_layer_norm(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis_attr("axis", -1, x->rank());
  const Dims inner(x->dims.begin() + axis, x->dims.end());
  Values operands = {x};
  for (size_t i : {1, 2}) {
    Value* value = c.optional(i);
    operands.push_back(value ? c.expand(value, inner) : nullptr);
  }
  const Values y = c.emit_all("LayerNormalization", operands,
                              {{"axis", axis}, {"epsilon", c.number("epsilon", 1e-5)}});
  Values results = {y.at(0)};
  if (!c.wants_output(1) && !c.wants_output(2)) return results;
  Dims statistics = x->dims;
  for (size_t d = static_cast<size_t>(axis); d < statistics.size(); ++d) statistics.at(d) = 1;
  const bool single = c.integer("stash_type", 1) == 1;
  for (size_t i : {1, 2}) {
    Value* statistic = c.reshape(y.at(i), statistics);
    results.push_back(single ? c.cast(statistic, DType::Float32) : statistic);
  }
  return results;
}

Values import_rms_norm(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis_attr("axis", -1, x->rank());
  const Dims inner(x->dims.begin() + axis, x->dims.end());
  Value* scale = c.optional(1);
  if (scale) scale = c.expand(scale, inner);
  const double epsilon = c.number("epsilon", 1e-5);
  const Values y = c.emit_all("SimplifiedLayerNormalization", {x, scale},
                              {{"axis", axis}, {"epsilon", epsilon}});
  return {y.at(0)};
}

Value* group_norm(OnnxCall& c, Value* x, Value* scale, Value* bias, int64_t groups) {
  return c.emit_all("GroupNormalization", {x, scale, bias},
                    {{"num_groups", groups}, {"epsilon", c.number("epsilon", 1e-5)}})[0];
}

Values import_instance_norm(OnnxCall& c) {
  Value* x = c.in(0);
  return {group_norm(c, x, c.in(1), c.in(2), c.sizes().fix(x->dims.at(1)))};
}

// Before operator set 21 there was a scale and bias for each group.
Values import_standard_group_norm(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t groups = c.integer("num_groups");
  Values parameters = {c.in(1), c.in(2)};
  const DimExpr channels = x->dims.at(1);
  for (Value*& each : parameters) {
    if (c.sizes().equal(each->dims.at(0), channels)) {
      each = c.reshape(each, {channels});
      continue;
    }
    const DimExpr size = DimExpr::floor_div(channels, groups);
    each = c.expand(c.reshape(c.expand(each, {groups}), {groups, 1}), {groups, size});
    each = c.reshape(each, {channels});
  }
  return {group_norm(c, x, parameters[0], parameters[1], groups)};
}

// x / (sum |x|^p)^(1/p)
Values import_lp_normalization(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis_attr("axis", -1, x->rank());
  const int64_t p = c.integer("p", 2);
  if (p != 1 && p != 2) c.refuse(str("p must be 1 or 2, but found ", p));
  Value* norm;
  if (p == 1) {
    norm = c.reduce("ReduceSum", c.emit("Abs", {x}), {axis}, true);
  } else {
    norm = c.emit("Sqrt", {c.reduce("ReduceSum", c.emit("Mul", {x, x}), {axis}, true)});
  }
  Value* is_zero = c.emit("Equal", {norm, number(c, 0, norm)});
  return {c.emit("Div", {x, c.emit("Where", {is_zero, number(c, 1, norm), norm})})};
}

Values import_mean_variance(OnnxCall& c) {
  Value* x = c.in(0);
  std::vector<int64_t> axes = c.integers("axes");
  if (axes.empty()) axes = {0, 2, 3};
  for (int64_t& axis : axes) axis = c.axis(axis, x->rank());
  Value* centred = c.emit("Sub", {x, c.reduce("ReduceMean", x, axes, true)});
  Value* variance = c.reduce("ReduceMean", c.emit("Mul", {centred, centred}), axes, true);
  Value* deviation = c.emit("Add", {c.emit("Sqrt", {variance}), number(c, 1e-9, x)});
  return {c.emit("Div", {centred, deviation})};
}

// x / (bias + alpha / size * sum of squares over `size` channels around)^beta
Values import_lrn(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t size = c.integer("size");
  constexpr int64_t kMostSize = 1024;  // each is a node
  if (size < 1 || size > kMostSize)
    c.refuse(str("size must be from 1 to ", kMostSize, ", but found ", size));
  const double alpha = c.number("alpha", 1e-4), beta = c.number("beta", 0.75);
  const size_t rank = x->rank();
  Dims pads(2 * rank, DimExpr(0));
  pads.at(1) = (size - 1) / 2;
  pads.at(rank + 1) = size / 2;
  Value* squares = c.emit("Pad", {c.emit("Mul", {x, x})}, {{"pads", pads}, {"value", 0.0}});
  Value* sum = nullptr;
  for (int64_t i = 0; i < size; ++i) {
    Value* part = c.slice(squares, 1, i, x->dims.at(1) + DimExpr(i));
    sum = sum ? c.emit("Add", {sum, part}) : part;
  }
  Value* scaled = c.emit("Mul", {sum, number(c, alpha / static_cast<double>(size), x)});
  Value* base = c.emit("Add", {scaled, number(c, c.number("bias", 1.0), x)});
  return {c.emit("Div", {x, c.emit("Pow", {base, number(c, beta, x)})})};
}

// x + skip (+ bias), normalized; the sum is output 3.
template <OpName norm>
Values import_skip_norm(OnnxCall& c) {
  const bool simplified = std::string_view(norm.text) == "SimplifiedLayerNormalization";
  Value* sum = c.pointwise("Add", {c.in(0), c.in(1)});
  const size_t bias = simplified ? 3 : 4;
  if (c.has(bias)) sum = c.pointwise("Add", {sum, c.in(bias)});
  Values operands = {sum, c.in(2)};
  if (!simplified) operands.push_back(c.optional(3));
  const auto axis = static_cast<int64_t>(sum->rank()) - 1;
  const Values y =
      c.emit_all(norm.text, operands, {{"axis", axis}, {"epsilon", c.number("epsilon", 1e-12)}});
  return {y.at(0), nullptr, nullptr, sum};
}

// ---- softmax -----------------------------------------------------------------------------------

// Since operator set 13 along one axis; before, over all axes from it on.
template <OpName op>
Values import_softmax(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() == 0) return {c.emit(op.text, {c.reshape(x, {1})}, {{"axis", 0}})};
  if (c.opset() >= 13)
    return {c.emit(op.text, {x}, {{"axis", c.axis_attr("axis", -1, x->rank())}})};
  const int64_t axis = c.axis_attr("axis", 1, x->rank());
  const Dims outer(x->dims.begin(), x->dims.begin() + axis),
      inner(x->dims.begin() + axis, x->dims.end());
  if (inner.size() == 1) return {c.emit(op.text, {x}, {{"axis", axis}})};
  Value* y = c.emit(op.text, {c.reshape(x, {product(outer), product(inner)})}, {{"axis", 1}});
  return {c.reshape(y, x->dims)};
}

// 1 at the first largest element, 0 elsewhere
Values import_hardmax(OnnxCall& c) {
  Value* given = c.in(0);
  Value* x = given;
  int64_t axis = c.axis_attr("axis", c.opset() >= 13 ? -1 : 1, x->rank());
  if (c.opset() < 13) {
    const Dims outer(x->dims.begin(), x->dims.begin() + axis),
        inner(x->dims.begin() + axis, x->dims.end());
    x = c.reshape(x, {product(outer), product(inner)});
    axis = 1;
  }
  if (c.sizes().equal(x->dims.at(static_cast<size_t>(axis)), 0)) return {given};
  Value* first = c.emit("ArgMax", {x}, {{"axis", axis}, {"keepdims", 1}});
  Value* y = c.emit("ScatterElements",
                    {c.full(0.0, x->dims, x->dtype), first, c.full(1.0, first->dims, x->dtype)},
                    {{"axis", axis}, {"reduction", "none"}});
  return {c.reshape(y, given->dims)};
}

// ---- losses ------------------------------------------------------------------------------------

// -weight[label] * log_probability[label] by element; elements with the ignored label count
// nothing.
Value* weighted_loss(OnnxCall& c, Value* log_probability, Value* labels, Value* weights,
                     Value*& factors) {
  if (log_probability->rank() < 2 || labels->rank() + 1 != log_probability->rank())
    c.refuse("scores must have a dimension of classes behind the first, and labels the others");
  Value* counted = nullptr;
  Value* index = c.cast(labels, DType::Int64);
  if (c.has_attr("ignore_index")) {
    Value* ignored = c.literal(static_cast<double>(c.integer("ignore_index")), DType::Int64);
    counted = c.emit("NotEqual", {index, ignored});
    index = c.emit("Where", {counted, index, c.literal(0, DType::Int64)});
  }
  Dims one = index->dims;
  one.insert(one.begin() + 1, DimExpr(1));
  Value* picked = c.emit("GatherElements", {log_probability, c.reshape(index, one)}, {{"axis", 1}});
  picked = c.reshape(picked, index->dims);
  const DType dtype = picked->dtype;
  factors =
      weights ? c.emit("Gather", {weights, index}, {{"axis", 0}}) : c.full(1.0, index->dims, dtype);
  if (counted) factors = c.emit("Mul", {factors, c.cast(counted, dtype)});
  return c.emit("Neg", {c.emit("Mul", {picked, factors})});
}

Value* reduced_loss(OnnxCall& c, Value* loss, Value* factors) {
  const std::string reduction = c.word("reduction", {"mean", "sum", "none"});
  if (reduction == "none") return loss;
  std::vector<int64_t> axes = axes_from(0, loss->rank());
  Value* sum = c.reduce("ReduceSum", loss, axes, false);
  if (reduction == "sum") return sum;
  return c.emit("Div", {sum, c.reduce("ReduceSum", factors, axes, false)});
}

Values import_nll_loss(OnnxCall& c) {
  Value* factors = nullptr;
  Value* loss = weighted_loss(c, c.in(0), c.in(1), c.optional(2), factors);
  return {reduced_loss(c, loss, factors)};
}

Values import_softmax_cross_entropy(OnnxCall& c) {
  Value* log_probability = c.emit("LogSoftmax", {c.in(0)}, {{"axis", 1}});
  Value* factors = nullptr;
  Value* loss = weighted_loss(c, log_probability, c.in(1), c.optional(2), factors);
  return {reduced_loss(c, loss, factors), log_probability};
}

REGISTER_ONNX({{"MatMul", 1, import_matmul},
               {"Gemm", 1, import_standard_gemm},
               {"BatchNormalization", 1, import_batch_norm},
               {"LayerNormalization", 1, import_layer_norm},
               {"RMSNormalization", 23, import_rms_norm},
               {"InstanceNormalization", 1, import_instance_norm},
               {"GroupNormalization", 18, import_standard_group_norm},
               {"LpNormalization", 1, import_lp_normalization},
               {"MeanVarianceNormalization", 1, import_mean_variance},
               {"LRN", 1, import_lrn},
               {"Softmax", 1, import_softmax<"Softmax">},
               {"LogSoftmax", 1, import_softmax<"LogSoftmax">},
               {"Hardmax", 1, import_hardmax},
               {"NegativeLogLikelihoodLoss", 12, import_nll_loss},
               {"SoftmaxCrossEntropyLoss", 12, import_softmax_cross_entropy}});

REGISTER_ONNX({{"FusedMatMul", 1, import_fused_matmul, nullptr, "com.microsoft"},
               {"TransposeMatMul", 1, import_fused_matmul, nullptr, "com.microsoft"},
               {"LayerNormalization", 1, import_layer_norm, nullptr, "com.microsoft"},
               {"SimplifiedLayerNormalization", 1, import_rms_norm},
               {"SimplifiedLayerNormalization", 1, import_rms_norm, nullptr, "com.microsoft"},
               {"SkipLayerNormalization", 1, import_skip_norm<"LayerNormalization">, nullptr,
                "com.microsoft"},
               {"SkipSimplifiedLayerNormalization", 1,
                import_skip_norm<"SimplifiedLayerNormalization">, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
