#include "ops/recurrent.h"

#include <numeric>

namespace ortmodule {

Dims with_width(const Dims& sequence, const DimExpr& width) {
  return {sequence[0], sequence[1], width};
}

void infer_states(InferContext& c, size_t weights, int64_t blocks) {
  const Value &pre = c.input(0), &r = c.input(weights);
  if (pre.rank() != 3 || r.rank() != 2)
    c.fail(str("the sequence must have rank 3 and the recurrent weights rank 2, but found ",
               dims_text(pre.dims), " and ", dims_text(r.dims)));
  if (!may_equal(r.dims[0], pre.dims[2]) || !may_equal(r.dims[0], DimExpr(blocks) * r.dims[1]))
    c.fail(str("recurrent weights must be [", blocks, " H, H] for gates ", dims_text(pre.dims),
               ", but found ", dims_text(r.dims)));
  if (pre.dtype != r.dtype)
    c.fail(str("all operands must have the same type, but found ", name_of(pre.dtype), " and ",
               name_of(r.dtype)));
  const DimExpr& batch = pre.dims[c.attrs().flag("layout") ? 0 : 1];
  c.set(0, pre.dtype, with_width(pre.dims, r.dims[1]));
  c.set(1, pre.dtype, {batch, r.dims[1]});
}

Attrs direction_attrs(const Attrs& attrs) {
  return {{"layout", attrs.integer("layout")}, {"reverse", attrs.integer("reverse")}};
}

namespace {

Handle as_rows(GradContext& c, Handle x) {
  return c.reshape(x, {x.dims()[0] * x.dims()[1], x.dims()[2]});
}

}  // namespace

void set_weight_grads(GradContext& c, Grads& grads, Handle dpre, Handle drecurrent,
                      size_t initial_h, size_t lengths) {
  if (c.needs(1)) {
    const Handle before = c.emit("PreviousStates", {c.y(0), c.x(initial_h), c.x(lengths)},
                                 direction_attrs(c.attrs()));
    grads[1] = c.emit("MatMul", {c.transpose(as_rows(c, drecurrent), {1, 0}), as_rows(c, before)});
  }
  const auto sum = [&](Handle x) {
    return c.emit("ReduceSum", {as_rows(c, x)}, {{"axes", Dims{0}}, {"keepdims", 0}});
  };
  if (c.needs(2)) grads[2] = sum(dpre);
  if (c.needs(3)) grads[3] = sum(drecurrent);
}

RecurrentLayer recurrent_layer(TorchCall& t) {
  RecurrentLayer layer;
  layer.x = t.tensor("input");
  if (!is_floating(layer.x->dtype)) t.refuse("a recurrent layer of types other than floats");
  layer.lengths = t.optional_tensor("lengths");
  layer.states = t.tensors("hx");
  layer.weights = t.tensors("params");
  layer.bidirectional = t.flag("bidirectional");
  layer.batch_first = t.flag("batch_first");
  layer.has_biases = layer.weights.size() == (layer.bidirectional ? 8 : 4);
  for (const Values* operands : {&layer.states, &layer.weights})
    for (const Value* value : *operands)
      if (value->dtype != layer.x->dtype) t.refuse("a recurrent layer of different types");
  return layer;
}

namespace {

/// The product of all steps' inputs with the input weights.
Value* input_product(TorchCall& t, Value* x, Value* w) {
  Value* rows = t.reshape(x, {x->dims[0] * x->dims[1], x->dims[2]});
  Value* product = t.emit("MatMul", {rows, t.emit("Transpose", {w}, {{"perm", Dims{1, 0}}})});
  return t.reshape(product, with_width(x->dims, w->dims[0]));
}

/// Direction `d` of states [directions, B, H].
Value* state_of(TorchCall& t, Value* states, int64_t d) {
  Value* one = t.emit("Slice", {states}, {{"axis", 0}, {"start", d}, {"end", d + 1}});
  return t.emit("Squeeze", {one}, {{"axes", Dims{0}}});
}

}  // namespace

Values emit_layer(TorchCall& t, const RecurrentLayer& layer, std::string_view op, size_t outputs,
                  Attrs attrs) {
  const int64_t directions = layer.bidirectional ? 2 : 1;
  const size_t each = layer.weights.size() / static_cast<size_t>(directions);
  std::vector<Values> parts(layer.states.size() + 1);
  for (int64_t d = 0; d < directions; ++d) {
    Value* const* w = layer.weights.data() + static_cast<size_t>(d) * each;
    Values operands{input_product(t, layer.x, w[0]), w[1], nullptr, nullptr};
    if (layer.has_biases) std::copy_n(w + 2, 2, operands.begin() + 2);
    for (Value* states : layer.states) operands.push_back(state_of(t, states, d));
    operands.push_back(layer.lengths);
    attrs.set("layout", int64_t{layer.batch_first});
    attrs.set("reverse", d);
    const Values results = t.emit_all(op, operands, attrs, outputs);
    parts[0].push_back(results[0]);
    for (size_t i = 1; i < parts.size(); ++i)
      parts[i].push_back(t.emit("Unsqueeze", {results[i]}, {{"axes", Dims{0}}}));
  }
  Values found;
  for (size_t i = 0; i < parts.size(); ++i)
    found.push_back(parts[i].size() == 1
                        ? parts[i][0]
                        : t.emit("Concat", parts[i], {{"axis", i == 0 ? int64_t{2} : int64_t{0}}}));
  return found;
}

static double product_flops(const Sizes& sequence, const Sizes& r) {
  return 2.0 * static_cast<double>(sequence[0] * sequence[1]) * static_cast<double>(r[0] * r[1]);
}
double recurrent_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return product_flops(in.at(0), in.at(1));
}
double recurrent_grad_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return product_flops(in.at(0), in.at(2));
}

}  // namespace ortmodule
