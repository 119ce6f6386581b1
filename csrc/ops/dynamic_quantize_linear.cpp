// y = clamp(round(x / scale) + zero, 0, 255) with the scale and zero point of x's own range, which
// is widened to hold 0: scale = (max - min) / 255, zero = clamp(round(-min / scale), 0, 255). Of
// zeros alone the scale is 1.

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_dynamic_quantize(InferContext& c) {
  const Value& x = c.input(0);
  if (x.dtype != DType::Float32) c.fail(str("x must be f32, but found ", name_of(x.dtype)));
  c.set(0, DType::UInt8, x.dims);
  c.set(1, DType::Float32, {});
  c.set(2, DType::UInt8, {});
}

REGISTER_OP(DynamicQuantizeLinear, {.inputs = {"x"},
                                    .outputs = {"y", "scale", "zero"},
                                    .kind = OpKind::Norm,
                                    .infer = infer_dynamic_quantize,
                                    .body = R"(dynamic_quantize (x) => (y, scale, zero) {
                                      low = ReduceMin<axes=[], keepdims=0> (x)
                                      least = Min (low, 0.0)
                                      high = ReduceMax<axes=[], keepdims=0> (x)
                                      most = Max (high, 0.0)
                                      range = Sub (most, least)
                                      step = Div (range, 255.0)
                                      flat = Equal (range, 0.0)
                                      scale = Where (flat, 1.0, step)
                                      below = Neg (least)
                                      place = Div (below, scale)
                                      rounded_place = Round (place)
                                      point = Clip<min=0.0, max=255.0> (rounded_place)
                                      steps = Div (x, scale)
                                      rounded = Round (steps)
                                      moved = Add (rounded, point)
                                      clamped = Clip<min=0.0, max=255.0> (moved)
                                      y = Cast<to=u8> (clamped)
                                      zero = Cast<to=u8> (point)
                                    })",
                                    .onnx = {export_directly}});

}  // namespace
}  // namespace ortmodule
