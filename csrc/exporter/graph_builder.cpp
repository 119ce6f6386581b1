#include "exporter/graph_builder.h"

#include <algorithm>

#include "base/error.h"
#include "exporter/memory_order.h"
#include "kernels/kernel.h"
#include "ops/emit.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// Encodes an argument of an ATen node as an attribute. Tensors become references to operands.
Attr encode_argument(const TorchArg& arg, Values& operands) {
  struct Encoder {
    Values& operands;
    Attr operator()(std::monostate) const { return std::string("none"); }
    Attr operator()(Value* value) const {
      operands.push_back(value);
      return str("tensor:", operands.size() - 1);
    }
    Attr operator()(const DimExpr& dim) const { return dim; }
    Attr operator()(bool flag) const { return std::string(flag ? "true" : "false"); }
    Attr operator()(double number) const { return number; }
    Attr operator()(const std::string& text) const { return "str:" + text; }
    Attr operator()(DType dtype) const { return dtype; }
    Attr operator()(const TorchOpaque& opaque) const { return "opaque:" + opaque.text; }
    Attr operator()(const TorchArgList& list) const { return encode_list(list); }

    Attr encode_list(const TorchArgList& list) const {
      Dims dims;
      std::vector<double> numbers;
      std::string tensors = "tensors:";
      std::string flags = "flags:";
      size_t tensor_count = 0;
      for (const TorchArg& entry : list) {
        if (const auto* dim = std::get_if<DimExpr>(&entry.value)) dims.push_back(*dim);
        if (const auto* number = std::get_if<double>(&entry.value)) numbers.push_back(*number);
        if (const auto* flag = std::get_if<bool>(&entry.value)) flags += *flag ? "1" : "0";
        const auto* value = std::get_if<Value*>(&entry.value);
        if (value || std::holds_alternative<std::monostate>(entry.value)) {
          tensors += str(tensor_count++ ? "," : "", value ? static_cast<int>(operands.size()) : -1);
          if (value) operands.push_back(*value);
        }
      }
      if (dims.size() == list.size()) return dims;
      if (numbers.size() == list.size()) return numbers;
      if (tensor_count == list.size()) return tensors;
      if (flags.size() == list.size() + 6) return flags;
      throw Error("[export] a list argument must have only tensors, sizes, numbers or flags");
    }
  };
  return std::visit(Encoder{operands}, arg.value);
}

/// Whether the op that converts `target` has a kernel on the device or decomposes into other ops.
/// If not, the call falls back to torch's dispatcher.
bool runs_on(Device device, const std::string& target) {
  static const auto owners = [] {
    std::unordered_map<std::string_view, const OpDef*> found;
    for (const OpDef* op : all_ops())
      for (const TorchRow& row : op->from_torch) found[row.target] = op;
    return found;
  }();
  const auto owner = owners.find(target);
  if (owner == owners.end()) return true;
  const OpDef& op = *owner->second;
  if (op.kind == OpKind::View || op.kind == OpKind::Pointwise || !op.body.empty()) return true;
  const std::vector<const KernelDef*> kernels = kernels_of(op.name);
  return kernels.empty() || std::ranges::any_of(kernels, [&](const KernelDef* kernel) {
           return kernel->device == device;
         });
}

}  // namespace

GraphBuilder::GraphBuilder(BuilderOptions options) : options_(options) {
  piece_.graph = std::make_unique<Graph>();
}

GraphBuilder GraphBuilder::body() const {
  GraphBuilder body(options_);
  body.is_body_ = true;
  body.symbol_ranges_ = symbol_ranges_;
  return body;
}

int GraphBuilder::remember(Value* value, Dims strides) {
  values_.push_back({value, std::move(strides)});
  return static_cast<int>(values_.size()) - 1;
}

const GraphBuilder::Captured& GraphBuilder::captured(int id) const {
  ORTM_ASSERT(id >= 0 && static_cast<size_t>(id) < values_.size(), "no captured value ", id);
  return values_[static_cast<size_t>(id)];
}

int GraphBuilder::input(const std::string& name, DType dtype, const Dims& sizes,
                        const Dims& strides, bool requires_grad, InputKind kind, int index) {
  BoundInput bound;
  bound.graph_input = static_cast<int>(graph().inputs().size());
  piece_.arguments.push_back(bound);
  return remember(graph().add_input(name, dtype, sizes, kind, requires_grad, index), strides);
}

void GraphBuilder::symint_input(const std::string& symbol, const ValueRange& range) {
  symbol_ranges_.emplace(symbol, range);
  BoundInput bound;
  bound.kind = BoundInput::Kind::Symbol;
  bound.symbol = symbol;
  piece_.arguments.push_back(bound);
}

int GraphBuilder::constant(const std::string& name, DType dtype, const Dims& sizes,
                           const Dims& strides) {
  return input(name, dtype, sizes, strides, false, InputKind::Constant);
}

bool GraphBuilder::takes_own_ops(const std::string& target, bool random) const {
  return !(random && options_.torch_random) && runs_on(options_.device, target);
}

bool GraphBuilder::has_rule(const std::string& target, bool random) const {
  return find_torch_row(target) != nullptr && takes_own_ops(target, random);
}

/// Whether an operand or a result is complex. Our ops' gradients are those of real numbers, but for
/// views; torch's own formulas conjugate.
bool GraphBuilder::touches_complex(const TracedCall& call) const {
  return std::ranges::any_of(call.operands, [&](int id) { return is_complex(value(id)->dtype); }) ||
         std::ranges::any_of(call.outputs, [](const TorchOutput& output) {
           return output.present && is_complex(output.dtype);
         });
}

/// Whether the nodes after the first `before` ones are all views.
bool GraphBuilder::made_only_views(size_t before) const {
  const auto& nodes = piece_.graph->nodes();
  const auto made = static_cast<std::ptrdiff_t>(nodes.size() - before);
  return std::all_of(nodes.rbegin(), std::next(nodes.rbegin(), made),
                     [](const auto& node) { return op_def(node->op).kind == OpKind::View; });
}

CallResult GraphBuilder::call(const TracedCall& call) {
  graph().current_origin = call.origin;
  graph().current_tag = call.tag;
  const TorchRow* row =
      takes_own_ops(call.target, call.random) ? find_torch_row(call.target) : nullptr;
  const size_t before = graph().node_count();
  std::string why = "no op converts it";
  if (row) {
    TorchCall torch_call(graph(), call.target, call.args, call.outputs, symbol_ranges_,
                         options_.torch);
    try {
      const Values results = row->convert(torch_call);
      if (touches_complex(call) && !made_only_views(before))
        torch_call.refuse("complex types have no op");
      return finish_call(call, results);
    } catch (const Refused& refused) {
      why = refused.what();
    } catch (const InternalError& error) {  // a bug in one rule must not break the whole model
      why = error.what();
    }
    while (graph().node_count() > before) graph().erase(graph().nodes().back().get());
  }
  piece_.refusals.push_back(
      str(call.target, ": ", why, " (", call.origin.module, ", ", call.origin.source, ")"));
  if (call.gradient) return std::nullopt;
  return aten_call(call);
}

std::vector<int> GraphBuilder::finish_call(const TracedCall& call, const Values& values) {
  const std::string& target = call.target;
  const std::vector<TorchOutput>& outputs = call.outputs;
  std::vector<int> ids;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].present || i >= values.size() || !values[i]) {
      ids.push_back(-1);
      continue;
    }
    Value* value = values[i];
    ORTM_ASSERT(value->dtype == outputs[i].dtype, target, " output ", i, " should be ",
                name_of(outputs[i].dtype), ", but its op returns ", name_of(value->dtype));
    ORTM_ASSERT(value->dims.size() == outputs[i].dims.size(), target, " output ", i,
                " should have rank ", outputs[i].dims.size(), ", but has ", value->dims.size());
    // Prefer the tracer's expression of a size over an equal one of ours.
    for (size_t d = 0; d < value->dims.size(); ++d) {
      const DimExpr& theirs = outputs[i].dims[d];
      ORTM_ASSERT(
          !theirs.is_constant() || !value->dims[d].is_constant() || theirs == value->dims[d],
          target, " output ", i, " should have size ", theirs, " in dim ", d, ", but has ",
          value->dims[d]);
      if (value->producer()) value->dims[d] = theirs;
    }
    ids.push_back(remember(value, outputs[i].strides));
  }
  return ids;
}

/// Whether an operator draws its random numbers in the order of its operands' memory. Attention
/// does not: it draws them by row and column of the scores.
static bool draws_in_memory_order(const TracedCall& call) {
  return call.random && call.target.find("scaled_dot_product_") == std::string::npos;
}

/// An operand of an ATen node in its traced layout if that is row-major. In any traced layout where
/// random numbers depend on it.
Value* GraphBuilder::as_traced(Value* value, const TracedCall& call) {
  // Inputs of the piece have their traced layout: Dynamo guards it.
  if (value->rank() < 2 || !(value->producer() || is_body_)) return value;
  const bool any_order = draws_in_memory_order(call);
  std::vector<int64_t> order;
  for (int id : call.operands) {
    if (captured(id).value != value) continue;
    std::vector<int64_t> found = dense_order(value->dims, strides(id));
    if (found.empty() && any_order) found = order_in_likeness(value->dims, strides(id));
    const bool row_major = std::is_sorted(found.begin(), found.end());
    if (!found.empty() && (row_major || any_order)) order = std::move(found);
  }
  if (order.empty()) return value;
  if (std::is_sorted(order.begin(), order.end())) return emit(graph(), "Contiguous", {value});
  Dims perm(order.begin(), order.end()), inverse(order.size(), DimExpr(0));
  for (size_t i = 0; i < order.size(); ++i)
    inverse[static_cast<size_t>(order[i])] = DimExpr(static_cast<int64_t>(i));
  Value* outer_first = emit(graph(), "Transpose", {value}, {{"perm", perm}});
  Value* dense = emit(graph(), "Contiguous", {outer_first});
  return emit(graph(), "Transpose", {dense}, {{"perm", inverse}});
}

std::vector<int> GraphBuilder::aten_call(const TracedCall& call) {
  Values operands;
  Attrs attrs;
  attrs.set("operator", call.target);
  if (call.random) attrs.set("random", DimExpr(1));
  for (const auto& [name, arg] : call.args)
    attrs.set("arg_" + name, encode_argument(arg, operands));
  for (Value*& operand : operands) operand = as_traced(operand, call);
  const std::vector<TorchOutput>& outputs = call.outputs;
  Node* node = graph().add_node("ATen", operands, outputs.size(), std::move(attrs));
  std::vector<int> ids;
  for (size_t i = 0; i < outputs.size(); ++i) {
    node->output(i)->dtype = outputs[i].present ? outputs[i].dtype : DType::Undefined;
    node->output(i)->dims = outputs[i].dims;
    ids.push_back(outputs[i].present ? remember(node->output(i), outputs[i].strides) : -1);
  }
  return ids;
}

std::vector<int> GraphBuilder::custom_gradient(const std::vector<int>& outputs,
                                               const std::vector<int>& inputs,
                                               const std::vector<int>& saved,
                                               std::shared_ptr<const Graph> body, bool traced) {
  Values operands;
  for (int id : outputs) operands.push_back(value(id));
  for (int id : inputs) operands.push_back(value(id));
  for (int id : saved) operands.push_back(value(id));
  Attrs attrs;
  attrs.set("outputs", DimExpr(static_cast<int64_t>(outputs.size())));
  attrs.set("inputs", DimExpr(static_cast<int64_t>(inputs.size())));
  attrs.set("body", std::move(body));
  if (traced) attrs.set("traced", DimExpr(1));
  Node* node = graph().add_node("CustomGradient", operands, outputs.size(), std::move(attrs));
  infer(*node);
  std::vector<int> ids;
  for (size_t i = 0; i < outputs.size(); ++i)
    ids.push_back(remember(node->output(i), strides(outputs[i])));
  return ids;
}

void GraphBuilder::mutate(int argument, int id) {
  const BoundInput& bound = piece_.arguments.at(static_cast<size_t>(argument));
  graph().add_output(value(id), OutputKind::Mutation, bound.graph_input);
}

/// Adds the next output if it is an argument.
bool GraphBuilder::output_alias() {
  const auto found = aliases_.find(static_cast<int>(piece_.results.size()));
  if (found == aliases_.end()) return false;
  BoundOutput bound;
  bound.kind = BoundOutput::Kind::Input;
  bound.argument = found->second;
  piece_.results.push_back(bound);
  return true;
}

void GraphBuilder::output(int id) {
  const auto stated = output_strides_.find(static_cast<int>(piece_.results.size()));
  if (output_alias()) return;
  BoundOutput bound;
  bound.kind = BoundOutput::Kind::Tensor;
  bound.graph_output = outputs_;
  piece_.results.push_back(bound);
  piece_.output_strides.push_back(stated == output_strides_.end() ? strides(id) : stated->second);
  Value* result = value(id);
  if (result->is_literal()) {  // a literal has no storage
    const double number = std::holds_alternative<double>(result->literal())
                              ? std::get<double>(result->literal())
                              : static_cast<double>(std::get<DimExpr>(result->literal()).value());
    result = emit(graph(), "ConstantOfShape", {},
                  {{"value", number}, {"shape", Dims{}}, {"dtype", result->dtype}});
  }
  graph().add_output(result, OutputKind::Output, outputs_++);
}

void GraphBuilder::output_dim(const DimExpr& dim) {
  if (output_alias()) return;
  BoundOutput bound;
  bound.kind = BoundOutput::Kind::Dim;
  bound.dim = dim;
  piece_.results.push_back(bound);
}

void GraphBuilder::output_none() {
  if (!output_alias()) piece_.results.emplace_back();
}

ExportedPiece GraphBuilder::take() {
  graph().current_origin = {};
  graph().current_tag.clear();
  return std::move(piece_);
}

}  // namespace ortmodule
