#include "ops/recurrent.h"

#include <algorithm>
#include <cctype>

namespace ortmodule {

Dims with_width(const Dims& sequence, const DimExpr& width) {
  Dims dims = sequence;
  dims.back() = width;
  return dims;
}

DimExpr batch_of(const InferContext& c, const Value& sequence, size_t states) {
  if (sequence.rank() == 2) return c.input(states).dims[0];
  return sequence.dims[c.attrs().flag("layout") ? 0 : 1];
}

void infer_states(InferContext& c, int64_t blocks, size_t batch_sizes, const DimExpr& hidden) {
  const Value &pre = c.input(kPre), &r = c.input(kR);
  const bool packed = c.has_input(batch_sizes);
  if (pre.rank() != (packed ? 2 : 3) || r.rank() != 2)
    c.fail(str("the sequence must have rank 3, with batch sizes 2, and the recurrent weights rank ",
               "2, but found ", dims_text(pre.dims), " and ", dims_text(r.dims)));
  if (!may_equal(r.dims[0], pre.dims.back()) || !may_equal(r.dims[0], DimExpr(blocks) * hidden))
    c.fail(str("recurrent weights must be [", blocks, " H, H] for gates ", dims_text(pre.dims),
               ", but found ", dims_text(r.dims)));
  if (pre.dtype != r.dtype)
    c.fail(str("all operands must have the same type, but found ", name_of(pre.dtype), " and ",
               name_of(r.dtype)));
  c.set(0, pre.dtype, with_width(pre.dims, r.dims[1]));
  c.set(1, pre.dtype, {batch_of(c, pre, kInitialH), r.dims[1]});
}

Attrs direction_attrs(const Attrs& attrs) {
  return {{"layout", attrs.integer("layout")}, {"reverse", attrs.integer("reverse")}};
}

Handle as_rows(GradContext& c, Handle x) {
  if (x.dims().size() == 2) return x;
  return c.reshape(x, {x.dims()[0] * x.dims()[1], x.dims()[2]});
}

void set_weight_grads(GradContext& c, Grads& grads, Handle dpre, Handle drecurrent,
                      size_t lengths) {
  if (c.needs(kR)) {
    const Handle before =
        c.emit("PreviousStates", {c.y(0), c.x(kInitialH), c.x(lengths), c.x(lengths + 1)},
               direction_attrs(c.attrs()));
    grads[kR] = c.emit("MatMul", {c.transpose(as_rows(c, drecurrent), {1, 0}), as_rows(c, before)});
  }
  const auto sum = [&](Handle x) {
    return c.emit("ReduceSum", {as_rows(c, x)}, {{"axes", Dims{0}}, {"keepdims", 0}});
  };
  if (c.needs(kInputBias)) grads[kInputBias] = sum(dpre);
  if (c.needs(kRecurrentBias)) grads[kRecurrentBias] = sum(drecurrent);
}

Values spell_out_steps(Graph& graph, const Node& node, const Values& operands) {
  std::string cell = node.op.substr(0, node.op.find("Steps"));
  std::ranges::transform(cell, cell.begin(), [](unsigned char c) { return std::tolower(c); });
  Attrs attrs{{"operator", "ortmodule_py." + cell + "_steps.default"},
              {"arg_batch_first", node.attrs.flag("layout") ? "true" : "false"},
              {"arg_reverse", node.attrs.flag("reverse") ? "true" : "false"},
              {"arg_relu", node.attrs.integer("relu", 0) != 0 ? "true" : "false"}};
  Values given;
  const std::vector<std::string_view>& names = op_def(node.op).inputs;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = str("arg_", names[i].substr(0, names[i].find('?')));
    const bool present = i < operands.size() && operands[i];
    ORTM_ASSERT(!present || names[i] != "sequence_lens?", "captured layers have packed batches");
    attrs.set(name, present ? str("tensor:", given.size()) : std::string("none"));
    if (present) given.push_back(operands[i]);
  }
  // All but what only the op's own gradient reads.
  const size_t results = op_def(node.op).always_kept.size();
  Node* steps = graph.add_node("ATen", given, results, std::move(attrs));
  for (size_t i = 0; i < results; ++i) {
    steps->output(i)->dtype = node.output(i)->dtype;
    steps->output(i)->dims = node.output(i)->dims;
  }
  return steps->outputs();
}

RecurrentLayer recurrent_layer(TorchCall& t) {
  RecurrentLayer layer;
  layer.x = t.tensor("input");
  if (!is_floating(layer.x->dtype)) t.refuse("a recurrent layer of types other than floats");
  layer.batch_sizes = t.optional_tensor("batch_sizes");
  layer.states = t.tensors("hx");
  layer.weights = t.tensors("params");
  layer.bidirectional = t.flag("bidirectional");
  layer.batch_first = t.flag("batch_first");
  const size_t each = layer.weights.size() / (layer.bidirectional ? 2 : 1);
  layer.has_biases = each >= 4;
  layer.projects = each % 2 == 1;
  for (const Values* operands : {&layer.states, &layer.weights})
    for (const Value* value : *operands)
      if (value->dtype != layer.x->dtype) t.refuse("a recurrent layer of different types");
  return layer;
}

namespace {

/// The product of all steps' inputs with the input weights.
Value* input_product(TorchCall& t, Value* x, Value* w) {
  const bool packed = x->rank() == 2;
  Value* rows = packed ? x : t.reshape(x, {x->dims[0] * x->dims[1], x->dims[2]});
  Value* product = t.emit("MatMul", {rows, t.emit("Transpose", {w}, {{"perm", Dims{1, 0}}})});
  return packed ? product : t.reshape(product, with_width(x->dims, w->dims[0]));
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
    operands.insert(operands.end(), {nullptr, layer.batch_sizes});
    if (layer.projects) operands.push_back(w[each - 1]);
    attrs.set("layout", int64_t{layer.batch_first});
    attrs.set("reverse", d);
    const Values results = t.emit_all(op, operands, attrs, outputs);
    parts[0].push_back(results[0]);
    for (size_t i = 1; i < parts.size(); ++i)
      parts[i].push_back(t.emit("Unsqueeze", {results[i]}, {{"axes", Dims{0}}}));
  }
  const auto last = static_cast<int64_t>(layer.x->rank()) - 1;
  Values found;
  for (size_t i = 0; i < parts.size(); ++i)
    found.push_back(parts[i].size() == 1
                        ? parts[i][0]
                        : t.emit("Concat", parts[i], {{"axis", i == 0 ? last : int64_t{0}}}));
  return found;
}

static double step_product_flops(const Sizes& sequence, const Sizes& r) {
  const double rows =
      static_cast<double>(element_count(sequence) / std::max<int64_t>(sequence.back(), 1));
  return 2.0 * rows * static_cast<double>(r[0] * r[1]);
}
double recurrent_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return step_product_flops(in.at(0), in.at(1));
}
double recurrent_grad_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return step_product_flops(in.at(0), in.at(2));
}

RowAxes recurrent_rows(const RowQuery& query) {
  constexpr size_t kProjection = 8;
  const int batch = query.node.attrs.flag("layout") ? 0 : 1;
  if (query.rank(kPre) != 3 || query.axis(kPre) != batch) return std::nullopt;
  for (size_t i = kR; i < query.node.inputs().size(); ++i) {
    const bool is_weight = i < kInitialH || i == kProjection;
    if (query.node.input(i) && query.axis(i) != (is_weight ? kWhole : 0)) return std::nullopt;
  }
  std::vector<int> axes;
  for (const Value* output : query.node.outputs()) axes.push_back(output->rank() == 3 ? batch : 0);
  return axes;
}

}  // namespace ortmodule
