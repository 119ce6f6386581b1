// Import of quantization: linear and dynamic, and products of quantized operands.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_cast.h"
#include "ops/onnx_window.h"
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
    case DType::UInt16: return {0, 65535};
    case DType::Int4: return {-8, 7};
    case DType::UInt4: return {0, 15};
    case DType::Int2: return {-2, 1};
    case DType::UInt2: return {0, 3};
    default: c.unsupported(str("quantized type ", name_of(dtype), " has no kernel"));
  }
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

// A zero point belongs to each scale. That of operand `x` also has its type.
void check_zero_point(OnnxCall& c, const Value* x) {
  if (!c.has(2)) return;
  if (x && widened(c, c.in(2))->dtype != x->dtype)
    c.refuse(str("x and its zero point must have the same type, but found ", name_of(c.dtype(0)),
                 " and ", name_of(c.dtype(2))));
  const Dims scale = c.dims(1), zero = c.dims(2);
  if (c.sizes().equal(product(scale), 1) && c.sizes().equal(product(zero), 1)) return;
  bool same = scale.size() == zero.size();
  for (size_t d = 0; same && d < scale.size(); ++d) same = c.sizes().equal(scale[d], zero[d]);
  if (!same)
    c.refuse(str("there must be a zero point for each scale, but found scales ", dims_text(scale),
                 " and zero points ", dims_text(zero)));
}

// As many scales as there are blocks, of which the last may be a part.
void check_blocks(OnnxCall& c, const Value* x, int64_t axis, int64_t block) {
  if (block == 0) return;
  const Dims scale = c.dims(1);
  if (block < 0 || scale.size() != x->rank())
    c.refuse(str("block_size must be positive and scales have the rank of x, ", x->rank(),
                 ", but found block_size ", block, " and scales ", dims_text(scale)));
  const auto at = static_cast<size_t>(axis);
  const DimExpr covered = scale[at] * DimExpr(block);
  if (!c.sizes().at_most(x->dims[at], covered) ||
      !c.sizes().at_most(covered, x->dims[at] + DimExpr(block - 1)))
    c.refuse(str("there must be a scale for each block of ", block, " of axis ", axis,
                 ", but found x ", dims_text(x->dims), " and scales ", dims_text(scale)));
}

int64_t quantized_axis(OnnxCall& c, const Value* x) {
  // Of one scale for all elements the axis does not count.
  if (c.rank(1) == 0 || (c.rank(1) == 1 && c.sizes().equal(c.dims(1)[0], 1))) return 0;
  return c.axis_attr("axis", 1, x->rank());
}

// Rounded to even, shifted and clamped to the type's range.
Value* quantize(OnnxCall& c, Value* x, Value* scale, Value* zero, DType dtype) {
  const Limits limits = limits_of(c, dtype);
  // In 32 bits where x has 16, as in onnxruntime: a rounded quotient may be a tie.
  const DType wide = compute_dtype(x->dtype);
  Value* y = c.emit("Round", {c.pointwise("Div", {c.cast(x, wide), c.cast(scale, wide)})});
  if (zero) y = c.pointwise("Add", {y, c.cast(zero, y->dtype)});
  y = c.emit("Clip", {y}, {{"min", limits.least}, {"max", limits.most}});
  return is_narrow_integer(dtype) ? as_narrow_integer(c, y, dtype) : c.cast(y, dtype);
}

// Zero points of floats of 8 bits are zero; float4e2m1 has some.
Value* quantize_to_float(OnnxCall& c, Value* x, Value* scale, Value* zero, DType dtype) {
  Value* y = c.cast(c.pointwise("Div", {x, scale}), DType::Float32);
  if (zero && dtype == DType::Float4E2M1) y = c.pointwise("Add", {y, zero});
  return onnx_cast(c, y, dtype, {c.flag("saturate", true), "up"});
}

Values import_quantize_linear(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = quantized_axis(c, x), block = c.integer("block_size", 0);
  check_zero_point(c, nullptr);
  check_blocks(c, x, axis, block);
  DType dtype = c.has(2) ? c.dtype(2) : c.dtype_attr("output_dtype", DType::UInt8);
  Value* scale = spread(c, c.in(1), x, axis, block);
  Value* zero = c.has(2) ? spread(c, widened(c, c.in(2)), x, axis, block) : nullptr;
  if (x->dtype != scale->dtype) x = c.cast(x, scale->dtype);
  if (is_narrow_float(dtype)) return {quantize_to_float(c, x, scale, zero, dtype)};
  return {quantize(c, x, scale, zero, dtype)};
}

// (x - zero) * scale
Value* dequantize(OnnxCall& c, Value* x, Value* scale, Value* zero) {
  // The difference of bytes is exact in floats, which take less time than integers of 32 bits.
  if (is_byte(x->dtype) && scale->dtype == DType::Float32) {
    Value* real = c.cast(x, DType::Float32);
    if (zero) real = c.pointwise("Sub", {real, c.cast(zero, DType::Float32)});
    return c.pointwise("Mul", {real, scale});
  }
  Value* wide = c.cast(x, DType::Int32);
  if (zero) wide = c.pointwise("Sub", {wide, c.cast(zero, DType::Int32)});
  const DType real = compute_dtype(scale->dtype);  // float16 does not hold what has 16 bits
  return c.cast(c.pointwise("Mul", {c.cast(wide, real), c.cast(scale, real)}), scale->dtype);
}

Values import_dequantize_linear(OnnxCall& c) {
  const bool real = is_narrow_float(c.dtype(0));
  Value* x = widened(c, c.in(0));
  const int64_t axis = quantized_axis(c, x), block = c.integer("block_size", 0);
  check_zero_point(c, x);
  check_blocks(c, x, axis, block);
  Value* scale = spread(c, c.in(1), x, axis, block);
  const DType dtype = c.dtype_attr("output_dtype", scale->dtype);
  if (real)  // a zero point is zero
    return {c.cast(c.pointwise("Mul", {x, c.cast(scale, DType::Float32)}), dtype)};
  Value* zero = c.has(2) ? spread(c, widened(c, c.in(2)), x, axis, block) : nullptr;
  return {c.cast(dequantize(c, x, scale, zero), dtype)};
}

// One number, as a quantizer writes the value of a padding.
std::optional<std::vector<KnownValue>> known_dequantized(OnnxCall& c) {
  const std::optional<double> scale = c.constant_number(1);
  const KnownValue* x = c.known(0);
  if (!scale || !x || !c.constant_number(0) || (c.has(2) && !c.constant_number(2)))
    return std::nullopt;
  const DType dtype = c.dtype_attr("output_dtype", c.dtype(1));
  const double zero = c.has(2) ? *c.constant_number(2) : 0.0;
  const auto real = static_cast<float>(*c.constant_number(0) - zero) * static_cast<float>(*scale);
  if (dtype != DType::Float32) return std::nullopt;
  return std::vector{KnownValue{dtype, x->dims, {KnownNumber::real(real)}}};
}

std::optional<std::vector<KnownValue>> known_quantized(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  const DType dtype = c.has(2) ? c.dtype(2) : DType::UInt8;
  if (!x || !c.constant_number(0) || !c.constant_number(1) || (c.has(2) && !c.constant_number(2)) ||
      !is_byte(dtype) || c.dtype(0) != DType::Float32)
    return std::nullopt;
  const float place = std::nearbyint(static_cast<float>(*c.constant_number(0)) /
                                     static_cast<float>(*c.constant_number(1)));
  const double zero = c.has(2) ? *c.constant_number(2) : 0.0;
  const double least = dtype == DType::Int8 ? -128.0 : 0.0;
  if (!std::isfinite(place)) return std::nullopt;
  const double number = std::clamp(static_cast<double>(place) + zero, least, least + 255.0);
  return std::vector{KnownValue{dtype, x->dims, {KnownNumber(static_cast<int64_t>(number))}}};
}

// uint8, with 0 exactly representable
Values import_dynamic_quantize(OnnxCall& c) {
  return c.emit_all("DynamicQuantizeLinear", {c.in(0)});
}

// ---- products ----------------------------------------------------------------------------------

Value* without_sizes(OnnxCall& c, Value* value) {
  return value && value->rank() > 0 && product(value->dims) == DimExpr(1) ? c.reshape(value, {})
                                                                          : value;
}

// x less its zero point, in int32. A zero point for each row of a has to become a column.
Value* centred(OnnxCall& c, Value* x, Value* zero, bool rows) {
  x = c.cast(x, DType::Int32);
  if (!zero) return x;
  Value* point = c.cast(zero, DType::Int32);
  if (point->rank() == 1 && rows) point = c.reshape(point, {point->dims.at(0), 1});
  return c.pointwise("Sub", {x, point});
}

// (a - a_zero) (b - b_zero), in int32
Value* integer_product(OnnxCall& c, Value* a, Value* b, Value* a_zero, Value* b_zero) {
  const bool row = a->rank() == 1, column = b->rank() == 1;
  if (row) a = c.reshape(a, {1, a->dims.at(0)});
  if (column) b = c.reshape(b, {b->dims.at(0), 1});
  a_zero = without_sizes(c, a_zero);
  b_zero = without_sizes(c, b_zero);
  const bool has_op = (!a_zero || a_zero->rank() <= 1) && (!b_zero || b_zero->rank() <= 1);
  Value* y = has_op ? c.emit("MatMulInteger", {a, b, a_zero, b_zero})
                    : c.emit("MatMul", {centred(c, a, a_zero, true), centred(c, b, b_zero, false)});
  Dims dims = y->dims;
  if (column) dims.pop_back();
  if (row) dims.erase(dims.end() - (column ? 1 : 2));
  return c.reshape(y, dims);
}

Values import_matmul_integer(OnnxCall& c) {
  return {integer_product(c, c.in(0), c.in(1), c.optional(2), c.optional(3))};
}

// a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero
Values import_qlinear_matmul(OnnxCall& c) {
  auto scale = [&](size_t i, bool rows) {
    Value* value = c.cast(c.in(i), DType::Float32);
    return rows && value->rank() == 1 && !(value->dims.at(0) == DimExpr(1))
               ? c.reshape(value, {value->dims.at(0), 1})
               : value;
  };
  Value* sum = c.cast(integer_product(c, c.in(0), c.in(3), c.in(2), c.in(5)), DType::Float32);
  Value* factor = c.pointwise("Mul", {scale(1, true), scale(4, false)});
  Value* real = c.pointwise("Mul", {sum, factor});
  return {quantize(c, real, scale(6, true), c.in(7), c.dtype(7))};
}

// Operands of the node by position; zero points may be absent.
struct ConvPlaces {
  size_t w, x_zero, w_zero;
};

Value* integer_conv(OnnxCall& c, const ConvPlaces& places) {
  const OnnxWindow window = read_onnx_window(c, onnx_kernel(c, c.dims(places.w)));
  return c.emit("ConvInteger",
                {c.in(0), c.in(places.w), without_sizes(c, c.optional(places.x_zero)),
                 without_sizes(c, c.optional(places.w_zero))},
                {{"strides", Dims(window.strides.begin(), window.strides.end())},
                 {"pads", window.pads()},
                 {"dilations", Dims(window.dilations.begin(), window.dilations.end())},
                 {"group", c.integer("group", 1)}});
}

Values import_conv_integer(OnnxCall& c) { return {integer_conv(c, {1, 2, 3})}; }

// x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias
Values import_qlinear_conv(OnnxCall& c) {
  Value* sum = integer_conv(c, {3, 2, 5});
  auto per_channel = [&](Value* value) {
    if (value->rank() == 0 || value->dims.at(0) == DimExpr(1)) return c.reshape(value, {});
    Dims dims(sum->rank() - 1, DimExpr(1));
    dims.at(0) = value->dims.at(0);
    return c.reshape(value, dims);
  };
  if (c.has(8)) sum = c.pointwise("Add", {sum, per_channel(c.cast(c.in(8), DType::Int32))});
  Value* factor = c.pointwise("Mul", {per_channel(c.in(1)), per_channel(c.in(4))});
  Value* real = c.pointwise("Mul", {c.cast(sum, DType::Float32), factor});
  return {quantize(c, real, c.in(6), c.in(7), c.dtype(7))};
}

REGISTER_ONNX({{"QuantizeLinear", 10, import_quantize_linear, known_quantized},
               {"DequantizeLinear", 10, import_dequantize_linear, known_dequantized},
               {"DynamicQuantizeLinear", 11, import_dynamic_quantize},
               {"MatMulInteger", 10, import_matmul_integer},
               {"ConvInteger", 10, import_conv_integer},
               {"QLinearMatMul", 10, import_qlinear_matmul},
               {"QLinearConv", 10, import_qlinear_conv}});

}  // namespace
}  // namespace ortmodule
