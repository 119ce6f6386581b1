// Import of com.microsoft's quantized operators. Their operands are dequantized, so that results
// are those of real numbers, quantized once.
#include <numeric>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// A scale and its zero point, of `dtype`, are one number each.
void check_scale(OnnxCall& c, size_t i, DType dtype) {
  for (size_t each : {i, i + 1})
    if (c.has(each) && !c.sizes().equal(product(c.dims(each)), 1))
      c.refuse(str("operand ", each, " must be one number, but found ", dims_text(c.dims(each))));
  if (c.has(i + 1) && c.dtype(i + 1) != dtype)
    c.refuse(str("zero points must have the type of what they are for, ", name_of(dtype),
                 ", but operand ", i + 1, " is of ", name_of(c.dtype(i + 1))));
}

// Operand `i` with scale i + 1 and zero point i + 2, as real numbers.
Value* dequantized(OnnxCall& c, size_t i) {
  check_scale(c, i + 1, c.dtype(i));
  return call_nested(c, "DequantizeLinear", {c.in(i), c.in(i + 1), c.optional(i + 2)},
                     {{"axis", int64_t{0}}})[0];
}

// y with the scale and zero point of operands `i` and i + 1.
Value* quantized(OnnxCall& c, Value* y, size_t i, DType dtype) {
  check_scale(c, i, dtype);
  Value* zero = c.optional(i + 1);
  if (!zero) zero = c.full(0.0, {}, dtype);
  return call_nested(c, "QuantizeLinear", {y, c.in(i), zero}, {{"axis", int64_t{0}}})[0];
}

template <OpName op>
Values import_binary(OnnxCall& c) {
  Value* y = c.pointwise(op.text, {dequantized(c, 0), dequantized(c, 3)});
  return {quantized(c, y, 6, c.dtype(0))};
}

// The product of integers, which is exact, scaled, with the zero point added before it is rounded:
// so ties are rare, and most of them are rounded as in onnxruntime.
Values import_mul(OnnxCall& c) {
  const DType dtype = c.dtype(0);
  for (size_t scale : {1, 4, 6}) check_scale(c, scale, dtype);
  const auto centred = [&](size_t i) {
    Value* x = c.cast(c.in(i), DType::Float32);
    return c.has(i + 2) ? c.pointwise("Sub", {x, c.cast(c.in(i + 2), DType::Float32)}) : x;
  };
  Value* y = c.pointwise("Mul", {c.pointwise("Mul", {centred(0), centred(3)}), c.in(1)});
  y = c.pointwise("Mul", {y, c.pointwise("Div", {c.in(4), c.in(6)})});
  if (c.has(7)) y = c.pointwise("Add", {y, c.cast(c.in(7), DType::Float32)});
  const double least = dtype == DType::Int8 ? -128 : 0;
  y = c.emit("Clip", {c.emit("Round", {y})}, {{"min", least}, {"max", least + 255}});
  return {c.cast(y, dtype)};
}

Values import_sigmoid(OnnxCall& c) {
  return {quantized(c, c.emit("Sigmoid", {dequantized(c, 0)}), 3, c.dtype(0))};
}

Values import_leaky_relu(OnnxCall& c) {
  Value* y = c.emit("LeakyRelu", {dequantized(c, 0)}, {{"alpha", c.number("alpha", 0.01)}});
  return {quantized(c, y, 3, c.dtype(0))};
}

// Of operator set 13 or more along one axis, before over all axes from it on.
Values import_softmax(OnnxCall& c) {
  Value* x = dequantized(c, 0);
  const bool one_axis = c.integer("opset") >= 13;
  const int64_t axis = c.axis_attr("axis", -1, x->rank());
  Value* y = x;
  if (one_axis) {
    y = c.emit("Softmax", {x}, {{"axis", axis}});
  } else {
    const Dims outer(x->dims.begin(), x->dims.begin() + axis),
        inner(x->dims.begin() + axis, x->dims.end());
    y = c.emit("Softmax", {c.reshape(x, {product(outer), product(inner)})}, {{"axis", 1}});
    y = c.reshape(y, x->dims);
  }
  return {quantized(c, y, 3, c.dtype(0))};
}

Values import_where(OnnxCall& c) {
  Value* y = c.pointwise("Where", {c.in(0), dequantized(c, 1), dequantized(c, 4)});
  return {quantized(c, y, 7, c.dtype(1))};
}

Values import_reduce_mean(OnnxCall& c) {
  Value* x = dequantized(c, 0);
  std::vector<int64_t> axes = c.integers("axes");
  for (int64_t& axis : axes) axis = c.axis(axis, x->rank());
  if (axes.empty()) {
    axes.resize(x->rank());
    std::iota(axes.begin(), axes.end(), 0);
  }
  return {quantized(c, c.reduce("ReduceMean", x, axes, c.flag("keepdims", true)), 3, c.dtype(0))};
}

// y_scale, y_zero_point, then tensor, scale and zero point of each part.
Values import_concat(OnnxCall& c) {
  Values parts;
  for (size_t i = 2; i + 1 < c.input_count(); i += 3) parts.push_back(dequantized(c, i));
  if (parts.empty()) c.refuse("there must be a part");
  Value* y = call_nested(c, "Concat", parts, pick_attrs(c, {"axis"}))[0];
  return {quantized(c, y, 0, c.dtype(2))};
}

Value* moved_channels(OnnxCall& c, Value* x, bool to_front) {
  const auto rank = static_cast<int64_t>(x->rank());
  std::vector<int64_t> order{0};
  if (to_front) order.push_back(rank - 1);
  for (int64_t i = to_front ? 1 : 2; i < rank - (to_front ? 1 : 0); ++i) order.push_back(i);
  if (!to_front) order.push_back(1);
  return c.transpose(x, order);
}

template <OpName op>
Values import_pool(OnnxCall& c) {
  const bool last = c.flag("channels_last");
  Value* x = dequantized(c, 0);
  if (last) x = moved_channels(c, x, true);
  Value* y = call_nested(c, op.text, {x},
                         pick_attrs(c, {"auto_pad", "ceil_mode", "count_include_pad",
                                        "kernel_shape", "pads", "strides"}))[0];
  if (last) y = moved_channels(c, y, false);
  return {quantized(c, y, 3, c.dtype(0))};
}

// Of bytes that are not dequantized: onnxruntime lays out images channels-last for such nodes.
Values import_nhwc_max_pool(OnnxCall& c) {
  Value* y = call_nested(c, "MaxPool", {moved_channels(c, c.in(0), true)},
                         pick_attrs(c, {"auto_pad", "ceil_mode", "dilations", "kernel_shape",
                                        "pads", "storage_order", "strides"}))[0];
  return {moved_channels(c, y, false)};
}

Values import_quantized_conv(OnnxCall& c) {
  if (!c.flag("channels_last")) return call_standard(c, "QLinearConv");
  Values operands;
  for (size_t i = 0; i < c.input_count(); ++i) operands.push_back(c.optional(i));
  operands.at(0) = moved_channels(c, c.in(0), true);
  Value* y = call_nested(
      c, "QLinearConv", operands,
      pick_attrs(c, {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}))[0];
  return {moved_channels(c, y, false)};
}

Values import_quantize(OnnxCall& c) { return call_standard(c, "QuantizeLinear"); }
Values import_dequantize(OnnxCall& c) { return call_standard(c, "DequantizeLinear"); }

// ---- products ----------------------------------------------------------------------------------

Value* with_bias(OnnxCall& c, Value* y, size_t i) {
  return c.has(i) ? c.pointwise("Add", {y, c.in(i)}) : y;
}

// A, B, b_scale, b_zero_point?, bias?
Values import_dynamic_matmul(OnnxCall& c) {
  const Values a = call_nested(c, "DynamicQuantizeLinear", {c.in(0)}, {}, 3);
  Value* sum = call_nested(c, "MatMulInteger", {a[0], c.in(1), a[2], c.optional(3)})[0];
  Value* scale = c.pointwise("Mul", {a[1], c.in(2)});
  return {with_bias(c, c.pointwise("Mul", {c.cast(sum, scale->dtype), scale}), 4)};
}

// A, B, a_scale, b_scale, a_zero_point?, b_zero_point?, bias?
Values import_integer_matmul(OnnxCall& c) {
  Value* sum = call_nested(c, "MatMulInteger", {c.in(0), c.in(1), c.optional(4), c.optional(5)})[0];
  Value* scale = c.pointwise("Mul", {c.in(2), c.in(3)});
  return {with_bias(c, c.pointwise("Mul", {c.cast(sum, scale->dtype), scale}), 6)};
}

// A, B with scale and zero point each, C (int32), y_scale and y_zero_point: without the
// latter, y is float (divided by y_scale, where it is given)
Values import_gemm(OnnxCall& c) {
  auto operand = [&](size_t i, std::string_view flag) {
    return c.flag(flag) ? c.transpose(c.in(i), {1, 0}) : c.in(i);
  };
  Value* sum =
      call_nested(c, "MatMulInteger",
                  {operand(0, "transA"), operand(3, "transB"), c.optional(2), c.optional(5)})[0];
  if (c.has(6)) sum = c.pointwise("Add", {sum, c.in(6)});
  Value* scale = c.pointwise("Mul", {c.in(1), c.in(4)});
  scale = c.emit("Mul", {scale, c.literal(c.number("alpha", 1.0), scale->dtype)});
  Value* y = c.pointwise("Mul", {c.cast(sum, scale->dtype), scale});
  if (c.has(7) && !c.has(8)) return {c.pointwise("Div", {y, c.in(7)})};
  return {c.has(7) ? quantized(c, y, 7, c.dtype(0)) : y};
}

REGISTER_ONNX({{"QLinearAdd", 1, import_binary<"Add">, nullptr, "com.microsoft"},
               {"QLinearMul", 1, import_mul, nullptr, "com.microsoft"},
               {"QLinearSigmoid", 1, import_sigmoid, nullptr, "com.microsoft"},
               {"QLinearLeakyRelu", 1, import_leaky_relu, nullptr, "com.microsoft"},
               {"QLinearSoftmax", 1, import_softmax, nullptr, "com.microsoft"},
               {"QLinearWhere", 1, import_where, nullptr, "com.microsoft"},
               {"QLinearReduceMean", 1, import_reduce_mean, nullptr, "com.microsoft"},
               {"QLinearConcat", 1, import_concat, nullptr, "com.microsoft"},
               {"QLinearAveragePool", 1, import_pool<"AveragePool">, nullptr, "com.microsoft"},
               {"QLinearGlobalAveragePool", 1, import_pool<"GlobalAveragePool">, nullptr,
                "com.microsoft"},
               {"QLinearConv", 1, import_quantized_conv, nullptr, "com.microsoft"},
               {"NhwcMaxPool", 1, import_nhwc_max_pool, nullptr, "com.microsoft"},
               {"QuantizeLinear", 1, import_quantize, nullptr, "com.microsoft"},
               {"DequantizeLinear", 1, import_dequantize, nullptr, "com.microsoft"},
               {"DynamicQuantizeMatMul", 1, import_dynamic_matmul, nullptr, "com.microsoft"},
               {"MatMulIntegerToFloat", 1, import_integer_matmul, nullptr, "com.microsoft"},
               {"QGemm", 1, import_gemm, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
