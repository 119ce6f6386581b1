// Import of control flow: branches and loops whose conditions are known are part of the graph.
#include <algorithm>

#include "base/error.h"
#include "importer/importer.h"
#include "ops/known_arithmetic.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

std::vector<ControlRow>& rows() {
  static std::vector<ControlRow> all;
  return all;
}

constexpr int64_t kMostIterations = 1024;

}  // namespace

ControlRegistrar::ControlRegistrar(std::vector<ControlRow> added) {
  rows().insert(rows().end(), added.begin(), added.end());
}

const ControlRow* find_control_row(std::string_view domain, std::string_view op) {
  for (const ControlRow& row : rows())
    if (row.op == op && row.domain == domain) return &row;
  return nullptr;
}

Imported& ControlCall::operand(size_t i) const {
  if (!has(i)) refuse(str("operand ", i, " must be given"));
  return *operands.at(i);
}

const OnnxAttr* ControlCall::find(std::string_view name) const {
  for (const auto& [key, value] : node.attrs)
    if (key == name) return &value;
  return nullptr;
}

const OnnxGraph& ControlCall::subgraph(std::string_view name) const {
  const OnnxAttr* attr = find(name);
  const auto* graph = attr ? std::get_if<std::shared_ptr<const OnnxGraph>>(attr) : nullptr;
  if (!graph || !*graph) refuse(str("attribute '", name, "' must be a graph"));
  return **graph;
}

int64_t ControlCall::integer(std::string_view name, int64_t fallback) const {
  const OnnxAttr* attr = find(name);
  const int64_t* value = attr ? std::get_if<int64_t>(attr) : nullptr;
  return value ? *value : fallback;
}

std::vector<int64_t> ControlCall::integers(std::string_view name) const {
  const OnnxAttr* attr = find(name);
  const auto* values = attr ? std::get_if<std::vector<int64_t>>(attr) : nullptr;
  return values ? *values : std::vector<int64_t>();
}

int64_t ControlCall::fixed_integer(size_t i) const {
  const KnownValue* value = importer.known_of(operand(i));
  if (!value || value->elements.size() != 1 || !value->elements.at(0).is_integer())
    refuse(str("operand ", i, " ('", i < node.inputs.size() ? node.inputs[i] : "",
               "') must be a constant, a size, or an input, but it is computed from data"));
  return importer.sizes().fix(value->elements.at(0).numerator());
}

std::vector<ImportedRef>& ControlCall::sequence(size_t i) const {
  Imported& value = operand(i);
  if (!value.sequence) refuse(str("operand ", i, " must be a sequence"));
  return *value.sequence;
}

void ControlCall::refuse(const std::string& why) const { throw Refused(why); }

namespace {

// The tensors of `values` joined behind a new first dimension, or along `axis`.
ImportedRef stacked(const ControlCall& c, const std::vector<ImportedRef>& values, int64_t axis) {
  Values parts;
  for (const ImportedRef& value : values) {
    Value* tensor = c.importer.tensor_of(*value);
    const auto at = axis < 0 ? axis + static_cast<int64_t>(tensor->rank()) + 1 : axis;
    Dims dims = tensor->dims;
    dims.insert(dims.begin() + at, DimExpr(1));
    parts.push_back(emit(c.importer.graph(), "Reshape", {tensor}, {{"shape", dims}}));
  }
  if (parts.empty()) c.refuse("a loop without iterations must have no results per iteration");
  const auto rank = static_cast<int64_t>(parts.at(0)->rank());
  Value* joined = parts.size() == 1 ? parts.at(0)
                                    : emit(c.importer.graph(), "Concat", parts,
                                           {{"axis", axis < 0 ? axis + rank : axis}});
  return Importer::of_tensor(joined);
}

std::vector<ImportedRef> import_if(const ControlCall& c) {
  const bool condition = c.fixed_integer(0) != 0;
  return c.importer.import_subgraph(c.subgraph(condition ? "then_branch" : "else_branch"), c.scope,
                                    {});
}

// Whether a condition computed by the body holds. It must be known, since the graph has no loops.
bool holds(const ControlCall& c, Imported& condition) {
  const KnownValue* value = c.importer.known_of(condition);
  if (!value || value->elements.size() != 1)
    c.refuse("the loop's condition must be known, but it is computed from data");
  return c.importer.sizes().fix(value->elements.at(0).numerator()) != 0;
}

std::vector<ImportedRef> import_loop(const ControlCall& c) {
  const OnnxGraph& body = c.subgraph("body");
  const bool counted = c.has(0);
  const int64_t count = counted ? c.fixed_integer(0) : kMostIterations;
  bool again = !c.has(1) || holds(c, c.operand(1));
  if (counted && count > kMostIterations)
    c.refuse(str("a loop must have at most ", kMostIterations, " iterations, but found ", count));
  const size_t carried = c.operands.size() > 2 ? c.operands.size() - 2 : 0;
  std::vector<ImportedRef> state(
      c.operands.begin() + static_cast<int64_t>(std::min<size_t>(2, c.operands.size())),
      c.operands.end());
  std::vector<std::vector<ImportedRef>> collected(
      body.outputs.size() > carried + 1 ? body.outputs.size() - carried - 1 : 0);
  int64_t i = 0;
  for (; again && i < count; ++i) {
    c.importer.count_iteration(body);
    std::vector<ImportedRef> inputs = {
        Importer::of_known({DType::Int64, {}, {KnownNumber(i)}}),
        Importer::of_known({DType::Bool, {}, {KnownNumber(int64_t{1})}})};
    inputs.insert(inputs.end(), state.begin(), state.end());
    const std::vector<ImportedRef> outputs = c.importer.import_subgraph(body, c.scope, inputs);
    for (const ImportedRef& output : outputs)
      if (output->failed) c.refuse("a node of its body cannot be imported");
    state.assign(outputs.begin() + 1, outputs.begin() + 1 + static_cast<int64_t>(carried));
    for (size_t k = 0; k < collected.size(); ++k) collected[k].push_back(outputs[1 + carried + k]);
    again = holds(c, *outputs[0]);
  }
  if (again && !counted) c.refuse(str("a loop must end within ", kMostIterations, " iterations"));
  std::vector<ImportedRef> results = state;
  for (size_t k = 0; k < collected.size(); ++k) {
    const bool wanted = carried + k < c.node.outputs.size() && !c.node.outputs[carried + k].empty();
    results.push_back(wanted ? stacked(c, collected[k], 0) : nullptr);
  }
  return results;
}

// Element `i` of a tensor along `axis`, without that axis.
ImportedRef element(const ControlCall& c, Value* tensor, int64_t axis, int64_t i) {
  Graph& graph = c.importer.graph();
  Value* part = emit(graph, "Slice", {tensor},
                     {{"axis", axis}, {"start", DimExpr(i)}, {"end", DimExpr(i + 1)}});
  Dims dims = part->dims;
  dims.erase(dims.begin() + axis);
  return Importer::of_tensor(emit(graph, "Reshape", {part}, {{"shape", dims}}));
}

int64_t list_at(const std::vector<int64_t>& list, size_t i) {
  return i < list.size() ? list.at(i) : 0;
}

int64_t from_front(int64_t axis, size_t rank) {
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

std::vector<ImportedRef> import_scan(const ControlCall& c) {
  if (auto distances = import_distance_scan(c)) return *distances;
  const OnnxGraph& body = c.subgraph("body");
  if (c.opset < 9) c.refuse("Scan of operator set 8, with a batch, is not supported");
  const auto scanned = static_cast<size_t>(c.integer("num_scan_inputs", 0));
  if (scanned == 0 || scanned > c.operands.size()) c.refuse("num_scan_inputs must be given");
  const size_t carried = c.operands.size() - scanned;
  const std::vector<int64_t> axes = c.integers("scan_input_axes"),
                             backward = c.integers("scan_input_directions"),
                             out_axes = c.integers("scan_output_axes"),
                             out_backward = c.integers("scan_output_directions");
  std::vector<Value*> tensors;
  std::vector<int64_t> along;
  for (size_t k = 0; k < scanned; ++k) {
    tensors.push_back(c.importer.tensor_of(c.operand(carried + k)));
    along.push_back(from_front(list_at(axes, k), tensors[k]->rank()));
  }
  const int64_t count =
      c.importer.sizes().fix(tensors[0]->dims.at(static_cast<size_t>(along.at(0))));
  if (count > kMostIterations)
    c.refuse(str("a Scan must have at most ", kMostIterations, " steps, but found ", count));
  std::vector<ImportedRef> state(c.operands.begin(),
                                 c.operands.begin() + static_cast<int64_t>(carried));
  std::vector<std::vector<ImportedRef>> collected(body.outputs.size() -
                                                  std::min(carried, body.outputs.size()));
  for (int64_t i = 0; i < count; ++i) {
    c.importer.count_iteration(body);
    std::vector<ImportedRef> inputs = state;
    for (size_t k = 0; k < scanned; ++k)
      inputs.push_back(
          element(c, tensors[k], along.at(k), list_at(backward, k) == 1 ? count - 1 - i : i));
    const std::vector<ImportedRef> outputs = c.importer.import_subgraph(body, c.scope, inputs);
    for (const ImportedRef& output : outputs)
      if (output->failed) c.refuse("a node of its body cannot be imported");
    state.assign(outputs.begin(), outputs.begin() + static_cast<int64_t>(carried));
    for (size_t k = 0; k < collected.size(); ++k) collected[k].push_back(outputs[carried + k]);
  }
  std::vector<ImportedRef> results = state;
  for (size_t k = 0; k < collected.size(); ++k) {
    if (list_at(out_backward, k) == 1) std::reverse(collected[k].begin(), collected[k].end());
    results.push_back(stacked(c, collected[k], list_at(out_axes, k)));
  }
  return results;
}

const ControlRegistrar kRows({{"If", import_if}, {"Loop", import_loop}, {"Scan", import_scan}});

}  // namespace
}  // namespace ortmodule
