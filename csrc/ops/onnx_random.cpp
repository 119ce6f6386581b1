// Import of random operators. Each draws from a Philox stream of its own; a session's seed and the
// number of the run are the key. Attribute `seed` is not read: two tools never draw alike.
#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Value* draw(OnnxCall& c, std::string_view op, const Dims& shape, DType dtype) {
  if (!is_floating(dtype))
    c.refuse(str("random numbers must be floats, but found ", name_of(dtype)));
  return c.emit(op, {}, {{"shape", shape}, {"dtype", dtype}, {"rng", c.next_rng_stream()}});
}

// x * factor + offset
Value* scaled(OnnxCall& c, Value* x, double factor, double offset) {
  if (factor != 1.0) x = c.emit("Mul", {x, c.literal(factor, x->dtype)});
  return offset == 0.0 ? x : c.emit("Add", {x, c.literal(offset, x->dtype)});
}

// The shape and type of a draw: attributes, or those of an operand (the "Like" forms).
template <bool like>
std::pair<Dims, DType> form(OnnxCall& c) {
  if (like) return {c.dims(0), c.dtype_attr("dtype", c.dtype(0))};
  const std::vector<int64_t> shape = c.integers("shape");
  return {Dims(shape.begin(), shape.end()), c.dtype_attr("dtype", DType::Float32)};
}

template <bool like>
Values import_normal(OnnxCall& c) {
  const auto [shape, dtype] = form<like>(c);
  Value* x = draw(c, "RandomNormal", shape, dtype);
  return {scaled(c, x, c.number("scale", 1.0), c.number("mean", 0.0))};
}

template <bool like>
Values import_uniform(OnnxCall& c) {
  const auto [shape, dtype] = form<like>(c);
  const double low = c.number("low", 0.0), high = c.number("high", 1.0);
  return {scaled(c, draw(c, "RandomUniform", shape, dtype), high - low, low)};
}

// 1 with the probability that the operand has, else 0
Values import_bernoulli(OnnxCall& c) {
  Value* p = c.in(0);
  const DType wide = p->dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  Value* drawn = draw(c, "RandomUniform", p->dims, wide);
  Value* hit = c.emit("Less", {drawn, c.cast(p, wide)});
  return {c.cast(hit, c.dtype_attr("dtype", p->dtype))};
}

// Classes by their unnormalized log-probabilities, with replacement: the first class at which the
// sum of probabilities exceeds a uniform number (inversion; Devroye, "Non-Uniform Random Variate
// Generation", chapter III.2).
Values import_multinomial(OnnxCall& c) {
  const Value* scores = c.in(0);
  const DType to = c.dtype_attr("dtype", DType::Int32);
  const int64_t samples = c.integer("sample_size", 1);
  if (scores->rank() != 2) c.refuse(str("x must have rank 2, but found ", scores->rank()));
  if (to != DType::Int32 && to != DType::Int64) c.refuse("dtype must be int32 or int64");
  if (samples < 1) c.refuse(str("sample_size must be positive, but found ", samples));
  const DType wide = scores->dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  const DimExpr batch = scores->dims[0], classes = scores->dims[1];
  Value* x = c.cast(c.in(0), wide);
  Value* weights = c.emit("Exp", {c.emit("Sub", {x, c.reduce("ReduceMax", x, {1}, true)})});
  Value* sums = c.emit("CumSum", {weights}, {{"axis", 1}});
  Value* drawn = draw(c, "RandomUniform", {batch, samples}, wide);
  drawn = c.emit("Mul", {drawn, c.reduce("ReduceMax", sums, {1}, true)});
  Value* passed = c.emit(
      "LessOrEqual", {c.reshape(sums, {batch, 1, classes}), c.reshape(drawn, {batch, samples, 1})});
  Value* index = c.reduce("ReduceSum", c.cast(passed, to), {2}, false);
  return {c.emit("Min", {index, size_number(c, classes - 1, to)})};  // where a product rounds up
}

REGISTER_ONNX({{"RandomNormal", 1, import_normal<false>},
               {"RandomNormalLike", 1, import_normal<true>},
               {"RandomUniform", 1, import_uniform<false>},
               {"RandomUniformLike", 1, import_uniform<true>},
               {"Bernoulli", 15, import_bernoulli},
               {"Multinomial", 7, import_multinomial}});

}  // namespace
}  // namespace ortmodule
