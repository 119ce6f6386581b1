// Import of operators that ONNX had as experiments until operator set 10, as in files of early
// converters.
#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Value* operand_before_10(OnnxCall& c) {
  if (c.opset() >= 10) c.refuse("operator set 10 has removed it");
  return c.in(0);
}

// alpha * x + beta
Values import_affine(OnnxCall& c) {
  Value* x = operand_before_10(c);
  Value* scaled = c.emit("Mul", {x, number(c, c.number("alpha", 1.0), x)});
  return {c.emit("Add", {scaled, number(c, c.number("beta", 0.0), x)})};
}

Values import_scale(OnnxCall& c) {
  Value* x = operand_before_10(c);
  return {c.emit("Mul", {x, number(c, c.number("scale", 1.0), x)})};
}

// alpha * tanh(beta * x)
Values import_scaled_tanh(OnnxCall& c) {
  Value* x = operand_before_10(c);
  Value* bent = c.emit("Tanh", {c.emit("Mul", {x, number(c, c.number("beta", 0.0), x)})});
  return {c.emit("Mul", {bent, number(c, c.number("alpha", 0.0), x)})};
}

// alpha * log(1 + e^(beta * x))
Values import_parametric_softplus(OnnxCall& c) {
  Value* x = operand_before_10(c);
  Value* scaled = c.emit("Mul", {x, number(c, c.number("beta", 0.0), x)});
  Value* bent = c.emit("Softplus", {scaled}, {{"beta", 1.0}, {"threshold", 40.0}});
  return {c.emit("Mul", {bent, number(c, c.number("alpha", 0.0), x)})};
}

// scale * x + bias, a number for each channel
Values import_image_scaler(OnnxCall& c) {
  Value* x = operand_before_10(c);
  const std::vector<double> bias = c.numbers("bias");
  if (x->rank() != 4 || !c.sizes().equal(x->dims.at(1), static_cast<int64_t>(bias.size())))
    c.refuse("x must be an image of as many channels as bias has numbers");
  KnownValue content{DType::Float32, {1, static_cast<int64_t>(bias.size()), 1, 1}, {}};
  for (double each : bias) content.elements.push_back(KnownNumber::real(each));
  Value* scaled = c.emit("Mul", {x, number(c, c.number("scale", 1.0), x)});
  return {c.emit("Add", {scaled, c.cast(c.constant(content), x->dtype)})};
}

// x without a border (left, top, right, bottom), or rows and columns of sizes `scale` behind it.
Values import_crop(OnnxCall& c) {
  Value* x = operand_before_10(c);
  const std::vector<int64_t> border = c.integers("border"), sizes = c.integers("scale");
  if (x->rank() != 4 || border.size() != 4) c.refuse("x must be an image, and border have 4 sizes");
  if (!sizes.empty() && sizes.size() != 2) c.refuse("scale must have two sizes");
  for (size_t i : {0, 1}) {  // rows, then columns
    const DimExpr size = x->dims.at(i + 2);
    const DimExpr begin = border.at(1 - i);
    const DimExpr end =
        sizes.empty() ? size - DimExpr(border.at(3 - i)) : begin + DimExpr(sizes.at(i));
    if (border.at(1 - i) < 0 || !c.sizes().at_most(begin, end) || !c.sizes().at_most(end, size))
      c.refuse(
          str("what is left must lie in the image, but found ", begin, " to ", end, " of ", size));
    x = c.slice(x, static_cast<int64_t>(i) + 2, begin, end);
  }
  return {x};
}

REGISTER_ONNX({{"Affine", 1, import_affine},
               {"Scale", 1, import_scale},
               {"ScaledTanh", 1, import_scaled_tanh},
               {"ParametricSoftplus", 1, import_parametric_softplus},
               {"ImageScaler", 1, import_image_scaler},
               {"Crop", 1, import_crop}});

}  // namespace
}  // namespace ortmodule
