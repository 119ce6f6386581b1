// y = standard normal numbers, from two uniform streams by Box and Muller ("A note on the
// generation of random normal deviates", 1958)

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/random_uniform.h"
#include "ops/torch_rules.h"

namespace ortmodule {

Value* draw_normal(TorchCall& t, DType dtype) {
  return t.emit("RandomNormal", {},
                {{"shape", t.output().dims}, {"dtype", dtype}, {"rng", t.next_rng_stream()}});
}

namespace {

void infer_random_normal(InferContext& c) {
  const DType dtype = c.attrs().dtype("dtype");
  if (dtype != DType::Float32 && dtype != DType::Float64)
    c.fail(str("dtype must be f32 or f64, but found ", name_of(dtype)));
  c.set(0, dtype, c.attrs().dims("shape"));
}

Values convert_randn(TorchCall& t) {
  require_real(t, true);
  require_default_generator(t);
  const DType dtype = t.output().dtype;
  return {t.cast(draw_normal(t, compute_dtype(dtype)), dtype)};
}

// `x.normal_(mean, std)`. A deviation that torch does not accept is left to it.
Values convert_normal(TorchCall& t) {
  require_real(t, true);
  require_default_generator(t);
  const DType dtype = t.output().dtype, inside = compute_dtype(dtype);
  const double mean = t.number_or("mean", 0.0), deviation = t.number_or("std", 1.0);
  if (!(deviation >= 0.0)) t.refuse("std must not be negative");
  Value* y = draw_normal(t, inside);
  if (deviation != 1.0) y = t.emit("Mul", {y, t.literal(deviation, inside)});
  if (mean != 0.0) y = t.emit("Add", {y, t.literal(mean, inside)});
  return {t.cast(y, dtype)};
}

void export_random_normal(const OnnxRuleContext& c) { export_draw(c, "RandomNormal"); }

REGISTER_OP(RandomNormal, {.inputs = {},
                           .outputs = {"y"},
                           .kind = OpKind::Pointwise,
                           .random = true,
                           .infer = infer_random_normal,
                           .body = R"(random_normal () => (y) {
                             u = RandomUniform<shape=@shape, dtype=@dtype, rng=@rng> ()
                             v = RandomUniform<shape=@shape, dtype=@dtype, rng=@rng, part=1> ()
                             positive = Sub (1.0, u)
                             log = Log (positive)
                             square = Mul (log, -2.0)
                             radius = Sqrt (square)
                             angle = Mul (v, 6.283185307179586)
                             side = Cos (angle)
                             y = Mul (radius, side)
                           })",
                           .onnx = {export_random_normal},
                           .from_torch = {{"aten.randn.default", convert_randn},
                                          {"aten.randn_like.default", convert_randn},
                                          {"aten.normal_functional.default", convert_normal},
                                          {"aten.normal.float_float", convert_normal}}});

}  // namespace
}  // namespace ortmodule
