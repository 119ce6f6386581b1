// Arithmetic on values of the joint graph, and the shape helpers of gradient rules.

#include "ops/grad_context.h"

#include "base/error.h"
#include "ops/differentiated.h"
#include "ops/infer_rules.h"

namespace ortmodule {
namespace {

Handle binary(std::string_view op, Handle a, Handle b) {
  ORTM_ASSERT(a && b, "gradient arithmetic on an absent value");
  Graph* graph = a.graph() ? a.graph() : b.graph();
  return {graph, emit(*graph, op, {a.value(), b.value()})};
}

Handle number(Handle like, double value) {
  ORTM_ASSERT(like, "gradient arithmetic on an absent value");
  return {like.graph(), like.graph()->literal(value, like.dtype())};
}

Values values_of(const std::vector<Handle>& handles) {
  Values values;
  for (const Handle& handle : handles) values.push_back(handle.value());
  return values;
}

}  // namespace

Handle operator+(Handle a, Handle b) { return binary("Add", a, b); }
Handle operator-(Handle a, Handle b) { return binary("Sub", a, b); }
Handle operator*(Handle a, Handle b) { return binary("Mul", a, b); }
Handle operator/(Handle a, Handle b) { return binary("Div", a, b); }
Handle operator-(Handle a) {
  ORTM_ASSERT(a, "gradient arithmetic on an absent value");
  return {a.graph(), emit(*a.graph(), "Neg", {a.value()})};
}
Handle operator+(Handle a, double b) { return binary("Add", a, number(a, b)); }
Handle operator-(Handle a, double b) { return binary("Sub", a, number(a, b)); }
Handle operator-(double a, Handle b) { return binary("Sub", number(b, a), b); }
Handle operator*(Handle a, double b) { return binary("Mul", a, number(a, b)); }
Handle operator*(double a, Handle b) { return binary("Mul", b, number(b, a)); }
Handle operator/(Handle a, double b) { return binary("Div", a, number(a, b)); }
Handle operator/(double a, Handle b) { return binary("Div", number(b, a), b); }

GradContext::GradContext(Graph& graph, const Node& node, Values output_grads,
                         std::vector<bool> needs)
    : graph_(graph),
      node_(node),
      output_grads_(std::move(output_grads)),
      needs_(std::move(needs)),
      read_(output_grads_.size(), false) {}

Handle GradContext::x(size_t i) const { return {&graph_, node_.input(i)}; }
Handle GradContext::y(size_t i) const { return {&graph_, node_.output(i)}; }
Handle GradContext::dy(size_t i) const {
  if (i < read_.size()) read_[i] = true;
  return {&graph_, i < output_grads_.size() ? output_grads_[i] : nullptr};
}

int GradContext::unread_output() const {
  const OpDef& def = op_def(node_.op);
  for (size_t k = 0; k < output_grads_.size(); ++k) {
    if (!output_grads_[k] || read_[k]) continue;
    for (size_t i = 0; i < needs_.size(); ++i)
      if (needs_[i] && flows_through(def, i, k)) return static_cast<int>(k);
  }
  return -1;
}

Handle GradContext::dy_or_zero(size_t i) {
  if (Handle grad = dy(i)) return grad;
  return full(0.0, y(i).dims(), y(i).dtype());
}

Handle GradContext::emit(std::string_view op, std::vector<Handle> inputs, Attrs attrs) {
  return {&graph_, ortmodule::emit(graph_, op, values_of(inputs), std::move(attrs))};
}

std::vector<Handle> GradContext::emit_all(std::string_view op, std::vector<Handle> inputs,
                                          Attrs attrs, size_t outputs) {
  const Node* node = emit_node(graph_, op, values_of(inputs), std::move(attrs), outputs);
  std::vector<Handle> handles;
  for (Value* output : node->outputs()) handles.emplace_back(&graph_, output);
  return handles;
}

Handle GradContext::literal(double value, DType dtype) {
  return {&graph_, graph_.literal(value, dtype)};
}

Handle GradContext::size_literal(const DimExpr& size, DType dtype) {
  if (size.is_constant()) return literal(static_cast<double>(size.value()), dtype);
  return {&graph_, graph_.literal(size, dtype)};
}

Handle GradContext::full(double value, const Dims& dims, DType dtype) {
  return emit("ConstantOfShape", {}, {{"value", value}, {"shape", dims}, {"dtype", dtype}});
}

Handle GradContext::zeros_for(size_t i) {
  return emit("GradientZeros", {dy()}, {{"shape", x(i).dims()}, {"dtype", x(i).dtype()}});
}

Handle GradContext::cast(Handle value, DType dtype) {
  return {&graph_, emit_cast(graph_, value.value(), dtype)};
}

Handle GradContext::reshape(Handle value, const Dims& dims) {
  if (value.dims() == dims) return value;
  return emit("Reshape", {value}, {{"shape", dims}});
}

Handle GradContext::transpose(Handle value, std::vector<int64_t> perm) {
  return emit("Transpose", {value}, {{"perm", Dims(perm.begin(), perm.end())}});
}

Handle GradContext::sum_to(Handle value, const Dims& dims) {
  return {&graph_, emit_sum_to(graph_, value.value(), dims)};
}

Value* emit_sum_to(Graph& graph, Value* value, const Dims& dims) {
  if (value->dims == dims) return value;
  ORTM_ASSERT(value->rank() >= dims.size(), "a sum cannot add dimensions");
  const size_t lead = value->rank() - dims.size();
  Dims axes;
  for (size_t i = 0; i < value->rank(); ++i)
    if (i < lead || (dims[i - lead] == DimExpr(1) && !(value->dims[i] == DimExpr(1))))
      axes.push_back(static_cast<int64_t>(i));
  if (axes.empty()) {  // the same sizes in another form
    ORTM_ASSERT(may_equal(value->dims, dims), "a sum to ", dims_text(dims), " found ",
                dims_text(value->dims));
    return value;
  }
  const bool only_leading = axes.size() == lead;
  Value* sum =
      emit(graph, "ReduceSum", {value}, {{"axes", axes}, {"keepdims", only_leading ? 0 : 1}});
  return sum->dims == dims ? sum : emit(graph, "Reshape", {sum}, {{"shape", dims}});
}

}  // namespace ortmodule
