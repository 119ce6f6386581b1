// y = uniform numbers of [0, 1): multiples of 2^-24 for float32, of 2^-53, 2^-11 and 2^-8 for
// float64, float16 and bfloat16, as torch draws them. Element i is drawn from words of the Philox
// stream (`rng`, `part`), so backward can draw it again and nothing has to be saved.

#include "ops/random_uniform.h"

#include <cmath>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {

void require_default_generator(const TorchCall& t) {
  if (!t.is_none("generator")) t.refuse("it draws from a generator of its own");
}

Value* draw_uniform(TorchCall& t, DType dtype) {
  return t.emit("RandomUniform", {},
                {{"shape", t.output().dims}, {"dtype", dtype}, {"rng", t.next_rng_stream()}});
}

// Sizes that are not known become those of an operand.
void export_draw(const OnnxRuleContext& c, const std::string& op) {
  const Dims& shape = c.attrs().dims("shape");
  const DType dtype = c.attrs().dtype("dtype");
  std::vector<int64_t> sizes;
  for (const DimExpr& dim : shape)
    if (dim.is_constant()) sizes.push_back(dim.value());
  if (!sizes.empty() && sizes.size() == shape.size())
    return c.set(0, op, {}, {{"shape", sizes}, {"dtype", dtype}});
  const OnnxTensor zero{dtype, {1}, encode_scalar(0.0, dtype)};
  const std::string like = c.op("ConstantOfShape", {c.b.sizes(shape)}, {{"value", zero}});
  c.set(0, op + "Like", {like}, {{"dtype", dtype}});
}

namespace {

void infer_random_uniform(InferContext& c) {
  const DType dtype = c.attrs().dtype("dtype");
  if (!is_floating(dtype)) c.fail(str("dtype must be floating point, but found ", name_of(dtype)));
  c.set(0, dtype, c.attrs().dims("shape"));
}

Values convert_rand(TorchCall& t) {
  require_real(t, true);
  require_default_generator(t);
  return {draw_uniform(t, t.output().dtype)};
}

// `x.uniform_(from, to)`. Bounds that torch does not accept are left to it.
Values convert_uniform(TorchCall& t) {
  require_real(t, true);
  require_default_generator(t);
  const DType dtype = t.output().dtype;
  const double from = t.number_or("from", 0.0), to = t.number_or("to", 1.0);
  if (!(from <= to) || !std::isfinite(to - from)) t.refuse("from must not exceed to");
  Value* unit = draw_uniform(t, dtype);
  if (from == 0.0 && to == 1.0) return {unit};
  const DType inside = compute_dtype(dtype);
  Value* scaled = t.emit("Mul", {t.cast(unit, inside), t.literal(to - from, inside)});
  return {t.cast(t.emit("Add", {scaled, t.literal(from, inside)}), dtype)};
}

void export_random_uniform(const OnnxRuleContext& c) { export_draw(c, "RandomUniform"); }

REGISTER_OP(RandomUniform, {.inputs = {},
                            .outputs = {"y"},
                            .attrs = {{"part", 0}},
                            .kind = OpKind::Pointwise,
                            .random = true,
                            .infer = infer_random_uniform,
                            .onnx = {export_random_uniform},
                            .from_torch = {{"aten.rand.default", convert_rand},
                                           {"aten.rand_like.default", convert_rand},
                                           {"aten.uniform.default", convert_uniform}}});

}  // namespace
}  // namespace ortmodule
