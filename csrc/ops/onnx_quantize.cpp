// Import of quantization: linear and dynamic, and products of quantized operands.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

struct Limits {
  double least, most;
};

Limits limits_of(OnnxCall& c, DType dtype) {
  switch (dtype) {
    case DType::UInt8: return {0, 255};
    case DType::Int8: return {-128, 127};
    case DType::Int16: return {-32768, 32767};
    default: c.refuse(str("quantized type ", name_of(dtype), " has no kernel"));
  }
}

Value* number(OnnxCall& c, double value, const Value* like) {
  return c.literal(value, like->dtype);
}

// A scale or zero point of rank 0, one per index of `axis`, or one per block of it, as x sees it.
Value* spread(OnnxCall& c, Value* value, const Value* x, int64_t axis, int64_t block) {
  if (value->rank() == 0) return value;
  if (block > 0) {
    Dims split, wide;
    for (size_t d = 0; d < value->rank(); ++d) {
      split.push_back(value->dims.at(d));
      wide.push_back(value->dims.at(d));
      if (static_cast<int64_t>(d) != axis) continue;
      split.push_back(1);
      wide.push_back(block);
    }
    Value* repeated = c.emit("Expand", {c.reshape(value, split)}, {{"shape", wide}});
    Dims joined = value->dims;
    joined.at(static_cast<size_t>(axis)) = joined.at(static_cast<size_t>(axis)) * DimExpr(block);
    repeated = c.reshape(repeated, joined);
    const DimExpr size = x->dims.at(static_cast<size_t>(axis));
    return joined.at(static_cast<size_t>(axis)) == size ? repeated
                                                        : c.slice(repeated, axis, 0, size);
  }
  if (value->rank() == 1 && c.sizes().equal(value->dims.at(0), 1)) return c.reshape(value, {});
  Dims dims(x->rank(), DimExpr(1));
  dims.at(static_cast<size_t>(axis)) = product(value->dims);
  return c.reshape(value, dims);
}

int64_t quantized_axis(OnnxCall& c, const Value* x) {
  // Of one scale for all elements the axis does not count.
  if (c.rank(1) == 0 || (c.rank(1) == 1 && c.sizes().equal(c.dims(1)[0], 1))) return 0;
  return c.axis_attr("axis", 1, x->rank());
}

// Rounded to even, shifted and clamped to the type's range.
Value* quantize(OnnxCall& c, Value* x, Value* scale, Value* zero, DType dtype) {
  const Limits limits = limits_of(c, dtype);
  Value* y = c.emit("Round", {c.pointwise("Div", {x, scale})});
  if (zero) y = c.pointwise("Add", {y, c.cast(zero, y->dtype)});
  y = c.emit("Clip", {y}, {{"min", limits.least}, {"max", limits.most}});
  return c.cast(y, dtype);
}

Values import_quantize(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = quantized_axis(c, x), block = c.integer("block_size", 0);
  DType dtype = c.has(2) ? c.dtype(2) : c.dtype_attr("output_dtype", DType::UInt8);
  Value* scale = spread(c, c.in(1), x, axis, block);
  Value* zero = c.has(2) ? spread(c, c.in(2), x, axis, block) : nullptr;
  if (x->dtype != scale->dtype) x = c.cast(x, scale->dtype);
  return {quantize(c, x, scale, zero, dtype)};
}

// (x - zero) * scale
Value* dequantize(OnnxCall& c, Value* x, Value* scale, Value* zero) {
  Value* wide = c.cast(x, DType::Int32);
  if (zero) wide = c.pointwise("Sub", {wide, c.cast(zero, DType::Int32)});
  return c.pointwise("Mul", {c.cast(wide, scale->dtype), scale});
}

Values import_dequantize(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = quantized_axis(c, x), block = c.integer("block_size", 0);
  Value* scale = spread(c, c.in(1), x, axis, block);
  Value* zero = c.has(2) ? spread(c, c.in(2), x, axis, block) : nullptr;
  return {dequantize(c, x, scale, zero)};
}

// uint8, with 0 exactly representable
Values import_dynamic_quantize(OnnxCall& c) {
  Value* x = c.in(0);
  std::vector<int64_t> axes(x->rank());
  std::iota(axes.begin(), axes.end(), 0);
  Value* least = c.emit("Min", {c.reduce("ReduceMin", x, axes, false), number(c, 0, x)});
  Value* most = c.emit("Max", {c.reduce("ReduceMax", x, axes, false), number(c, 0, x)});
  Value* scale = c.emit("Div", {c.emit("Sub", {most, least}), number(c, 255, x)});
  Value* zero = c.emit("Round", {c.emit("Div", {c.emit("Neg", {least}), scale})});
  zero = c.emit("Clip", {zero}, {{"min", 0.0}, {"max", 255.0}});
  Value* rounded = c.emit("Round", {c.emit("Div", {x, scale})});
  Value* y = c.emit("Clip", {c.emit("Add", {rounded, zero})}, {{"min", 0.0}, {"max", 255.0}});
  return {c.cast(y, DType::UInt8), scale, c.cast(zero, DType::UInt8)};
}

// ---- products ----------------------------------------------------------------------------------

// Operand i less its zero point, in int32. A zero point per row of a is [M], of b's columns [N].
Value* centred(OnnxCall& c, size_t i, size_t zero, bool rows) {
  Value* x = c.cast(c.in(i), DType::Int32);
  if (!c.has(zero)) return x;
  Value* point = c.cast(c.in(zero), DType::Int32);
  if (point->rank() == 1 && rows && !(point->dims.at(0) == DimExpr(1)))
    point = c.reshape(point, {point->dims.at(0), 1});
  return c.pointwise("Sub", {x, point});
}

Value* product_of(OnnxCall& c, Value* a, Value* b) {
  const bool row = a->rank() == 1, column = b->rank() == 1;
  if (row) a = c.reshape(a, {1, a->dims.at(0)});
  if (column) b = c.reshape(b, {b->dims.at(0), 1});
  Value* y = c.emit("MatMul", {a, b});
  Dims dims = y->dims;
  if (column) dims.pop_back();
  if (row) dims.erase(dims.end() - (column ? 1 : 2));
  return c.reshape(y, dims);
}

Values import_matmul_integer(OnnxCall& c) {
  return {product_of(c, centred(c, 0, 2, true), centred(c, 1, 3, false))};
}

// a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero
Values import_qlinear_matmul(OnnxCall& c) {
  auto operand = [&](size_t i, bool rows) {
    Value* x = c.cast(c.in(i), DType::Int32);
    Value* zero = c.cast(c.in(i + 2), DType::Int32);
    if (rows && zero->rank() == 1 && !(zero->dims.at(0) == DimExpr(1)))
      zero = c.reshape(zero, {zero->dims.at(0), 1});
    return c.pointwise("Sub", {x, zero});
  };
  auto scale = [&](size_t i, bool rows) {
    Value* value = c.cast(c.in(i), DType::Float32);
    return rows && value->rank() == 1 && !(value->dims.at(0) == DimExpr(1))
               ? c.reshape(value, {value->dims.at(0), 1})
               : value;
  };
  Value* sum = c.cast(product_of(c, operand(0, true), operand(3, false)), DType::Float32);
  Value* factor = c.pointwise("Mul", {scale(1, true), scale(4, false)});
  Value* real = c.pointwise("Mul", {sum, factor});
  return {quantize(c, real, scale(6, true), c.in(7), c.dtype(7))};
}

// A convolution of quantized operands, exact in float64 up to 2^53.
Value* integer_conv(OnnxCall& c, Value* x, Value* weights) {
  const size_t spatial = std::max<size_t>(weights->rank(), 3) - 2;
  auto list = [&](std::string_view name, size_t count, int64_t fallback) {
    std::vector<int64_t> numbers = c.integers(name);
    if (numbers.empty()) numbers.assign(count, fallback);
    return Dims(numbers.begin(), numbers.end());
  };
  if (c.string("auto_pad", "NOTSET") != "NOTSET") c.refuse("auto_pad must be NOTSET");
  if (weights->rank() < 3 || x->rank() != weights->rank())
    c.refuse("x and the weights must have the same rank of at least 3");
  if (c.integers("pads").size() % (2 * spatial) != 0) c.refuse("'pads' must have two numbers each");
  Dims pads = list("pads", 2 * spatial, 0), around(2 * x->rank(), DimExpr(0));
  for (size_t i = 0; i < spatial; ++i) {
    around.at(2 + i) = pads.at(i);
    around.at(x->rank() + 2 + i) = pads.at(spatial + i);
  }
  x = c.emit("Pad", {x}, {{"pads", around}, {"value", 0.0}});
  return c.emit("Conv", {x, weights, nullptr},
                {{"strides", list("strides", spatial, 1)},
                 {"pads", Dims(2 * spatial, DimExpr(0))},
                 {"dilations", list("dilations", spatial, 1)},
                 {"group", c.integer("group", 1)}});
}

// The zero point of the weights is one number, or one per output channel.
Value* centred_weights(OnnxCall& c, size_t i, size_t zero) {
  Value* weights = c.cast(c.in(i), DType::Float64);
  if (!c.has(zero)) return weights;
  Value* point = c.cast(c.in(zero), DType::Float64);
  if (point->rank() == 1 && !(point->dims.at(0) == DimExpr(1))) {
    Dims dims(weights->rank(), DimExpr(1));
    dims.at(0) = point->dims.at(0);
    point = c.reshape(point, dims);
  }
  return c.pointwise("Sub", {weights, point});
}

Values import_conv_integer(OnnxCall& c) {
  Value* x = c.cast(c.in(0), DType::Float64);
  if (c.has(2)) x = c.pointwise("Sub", {x, c.cast(c.in(2), DType::Float64)});
  return {c.cast(integer_conv(c, x, centred_weights(c, 1, 3)), DType::Int32)};
}

// x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias
Values import_qlinear_conv(OnnxCall& c) {
  Value* x = c.pointwise("Sub", {c.cast(c.in(0), DType::Float64), c.cast(c.in(2), DType::Float64)});
  Value* sum = integer_conv(c, x, centred_weights(c, 3, 5));
  auto per_channel = [&](Value* value) {
    if (value->rank() == 0 || value->dims.at(0) == DimExpr(1)) return c.reshape(value, {});
    Dims dims(sum->rank() - 1, DimExpr(1));
    dims.at(0) = value->dims.at(0);
    return c.reshape(value, dims);
  };
  if (c.has(8)) sum = c.pointwise("Add", {sum, per_channel(c.cast(c.in(8), DType::Float64))});
  Value* factor = c.pointwise("Mul", {per_channel(c.in(1)), per_channel(c.in(4))});
  Value* real = c.pointwise("Mul", {c.cast(sum, DType::Float32), factor});
  return {quantize(c, real, c.in(6), c.in(7), c.dtype(7))};
}

REGISTER_ONNX({{"QuantizeLinear", 10, import_quantize},
               {"DequantizeLinear", 10, import_dequantize},
               {"DynamicQuantizeLinear", 11, import_dynamic_quantize},
               {"MatMulInteger", 10, import_matmul_integer},
               {"ConvInteger", 10, import_conv_integer},
               {"QLinearMatMul", 10, import_qlinear_matmul},
               {"QLinearConv", 10, import_qlinear_conv}});

}  // namespace
}  // namespace ortmodule
