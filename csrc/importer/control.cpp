// Import of control flow: branches and loops whose conditions are known are part of the graph.
#include <algorithm>

#include "base/error.h"
#include "importer/importer.h"
#include "importer/loop_body.h"
#include "ops/known_arithmetic.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

std::vector<ControlRow>& rows() {
  static std::vector<ControlRow> all;
  return all;
}

constexpr int64_t kMostIterations = 1024;
constexpr int64_t kMostUnrolledNodes = 50'000;

// Whether so many iterations are better run than made nodes of the graph.
bool is_long(int64_t iterations, const OnnxGraph& body) {
  return iterations > kMostIterations ||
         iterations * static_cast<int64_t>(body.nodes.size()) > kMostUnrolledNodes;
}

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
  if (!value)
    throw DataNeeded(
        str("operand ", i, " ('", i < node.inputs.size() ? node.inputs[i] : "",
            "') must be a constant, a size, or an input, but it is computed from data"));
  if (value->elements.size() != 1 || !value->elements.at(0).is_integer())
    refuse(str("operand ", i, " must be one integer"));
  return importer.sizes().fix(importer.place(value->elements.at(0).numerator()));
}

std::vector<ImportedRef>& ControlCall::sequence(size_t i) const {
  Imported& value = operand(i);
  if (!value.sequence) refuse(str("operand ", i, " must be a sequence"));
  return *value.sequence;
}

void ControlCall::refuse(const std::string& why) const { throw Refused(why); }

void ControlCall::unsupported(const std::string& why) const { throw Unsupported(why); }

void ControlCall::run_subgraph(const std::string& why) const {
  DataNeeded needed(why);
  needed.runs_subgraph = true;
  throw needed;
}

namespace {

ImportedRef empty_stack(const ControlCall& c, int64_t axis, DType dtype, Dims dims) {
  if (axis < 0) axis += static_cast<int64_t>(dims.size()) + 1;
  if (axis < 0 || axis > static_cast<int64_t>(dims.size())) c.refuse("an axis must be within rank");
  dims.insert(dims.begin() + axis, DimExpr(0));
  return Importer::of_tensor(emit(c.importer.graph(), "ConstantOfShape", {},
                                  {{"value", 0.0}, {"shape", dims}, {"dtype", dtype}}));
}

// Results of no iterations, as the body declares one of them; sizes that it leaves open are 0.
ImportedRef empty_stack(const ControlCall& c, int64_t axis, const OnnxValue& output) {
  const OnnxType& type = output.type;
  if (type.dtype == DType::Undefined || !type.dims)
    c.unsupported(str("output '", output.name,
                      "' of its body must have a type and a rank, as there is ", "no iteration"));
  Dims dims;
  for (const OnnxDim& dim : *type.dims) {
    const auto* size = std::get_if<int64_t>(&dim);
    dims.emplace_back(size ? *size : 0);
  }
  return empty_stack(c, axis, type.dtype, std::move(dims));
}

// The tensors of `values` joined behind a new first dimension, or along `axis`.
ImportedRef stacked(const ControlCall& c, const std::vector<ImportedRef>& values, int64_t axis,
                    const OnnxValue& output) {
  if (values.empty()) return empty_stack(c, axis, output);
  Values parts;
  for (const ImportedRef& value : values) {
    Value* tensor = c.importer.tensor_of(*value);
    const auto rank = static_cast<int64_t>(tensor->rank()) + 1;
    if (axis < -rank || axis >= rank)
      c.refuse(str("axis ", axis, " of an output must be within rank ", rank));
    Dims dims = tensor->dims;
    dims.insert(dims.begin() + (axis < 0 ? axis + rank : axis), DimExpr(1));
    parts.push_back(emit(c.importer.graph(), "Reshape", {tensor}, {{"shape", dims}}));
  }
  const auto rank = static_cast<int64_t>(parts.at(0)->rank());
  Value* joined = parts.size() == 1 ? parts.at(0)
                                    : emit(c.importer.graph(), "Concat", parts,
                                           {{"axis", axis < 0 ? axis + rank : axis}});
  ImportedRef result = Importer::of_tensor(joined);
  result->meaning = values[0]->meaning;
  for (const ImportedRef& value : values)
    if (value->meaning == OnnxMeaning::Maps || value->meaning != result->meaning)
      c.refuse(
          str("output '", output.name, "' of its body must be numbers, or strings, each time"));
  return result;
}

std::vector<ImportedRef> import_if(const ControlCall& c) {
  // Contents of matrices are not known before a run, not even of one element.
  if (Imported& given = c.operand(0); given.dims.size() > 1 && !c.importer.known_of(given))
    c.run_subgraph("its condition is computed from data");
  const bool condition = c.fixed_integer(0) != 0;
  return c.importer.import_subgraph(c.subgraph(condition ? "then_branch" : "else_branch"), c.scope,
                                    {});
}

// Whether a condition computed by the body holds. It must be known, since the graph has no loops.
bool holds(const ControlCall& c, Imported& condition) {
  const KnownValue* value = c.importer.known_of(condition);
  if (!value) c.run_subgraph("the loop's condition is computed from data");
  if (value->elements.size() != 1) c.refuse("the loop's condition must have one element");
  return c.importer.sizes().fix(value->elements.at(0).numerator()) != 0;
}

// Throws Refused for a loop that nothing ends.
void check_end(const ControlCall& c, const OnnxGraph& body, bool counted, int64_t count) {
  if (c.has(1)) {
    const KnownValue* first = c.importer.known_of(c.operand(1));
    if (first && first->is_constant() && first->elements.size() == 1 &&
        first->elements[0].value() == 0)
      return;
  }
  if (keeps_condition(body) && (!counted || count > kMostEndlessIterations))
    c.unsupported(
        str("a loop must end: its body keeps the condition, and the trip count ",
            counted ? str("of ", count, " is above ", kMostEndlessIterations) : "is absent"));
}

// The body takes the iteration, the condition and the state, and returns the latter two and more.
void check_loop_body(const ControlCall& c, const OnnxGraph& body) {
  const size_t carried = c.operands.size() > 2 ? c.operands.size() - 2 : 0;
  if (body.inputs.size() != carried + 2 || body.outputs.size() < carried + 1)
    c.refuse(str("its body must have ", carried + 2, " inputs and at least ", carried + 1,
                 " outputs, but found ", body.inputs.size(), " and ", body.outputs.size()));
}

// The inputs of iteration `i`.
std::vector<ImportedRef> iteration_inputs(int64_t i, const std::vector<ImportedRef>& state) {
  std::vector<ImportedRef> inputs = {
      Importer::of_known({DType::Int64, {}, {KnownNumber(i)}}),
      Importer::of_known({DType::Bool, {}, {KnownNumber(int64_t{1})}})};
  inputs.insert(inputs.end(), state.begin(), state.end());
  return inputs;
}

// Results of no iterations where the body declares no rank for one of them: what the first
// iteration would compute, of which nothing is left. Sizes that depend on inputs are 0.
ImportedRef undeclared_empty_stack(const ControlCall& c, const OnnxGraph& body,
                                   const std::vector<ImportedRef>& state, size_t output) {
  const std::vector<ImportedRef> outputs =
      c.importer.import_subgraph(body, c.scope, iteration_inputs(0, state));
  const ImportedRef& like = outputs.at(output);
  if (!like || like->failed || like->sequence || like->is_absent)
    return empty_stack(c, 0, body.outputs[output]);  // refuses
  Dims dims = like->dims;
  for (DimExpr& dim : dims)
    if (!dim.is_constant()) dim = 0;
  return empty_stack(c, 0, like->dtype, std::move(dims));
}

std::vector<ImportedRef> import_loop(const ControlCall& c) {
  const OnnxGraph& body = c.subgraph("body");
  const bool counted = c.has(0);
  check_loop_body(c, body);
  const KnownValue* known_count = counted ? c.importer.known_of(c.operand(0)) : nullptr;
  if (counted && !known_count) c.run_subgraph("the number of iterations is computed from data");
  const int64_t count = counted ? c.fixed_integer(0) : kMostIterations;
  check_end(c, body, counted, count);
  bool again = !c.has(1) || holds(c, c.operand(1));
  if (counted && is_long(count, body)) c.run_subgraph("its iterations are too many for one graph");
  const size_t carried = c.operands.size() > 2 ? c.operands.size() - 2 : 0;
  std::vector<ImportedRef> state(
      c.operands.begin() + static_cast<int64_t>(std::min<size_t>(2, c.operands.size())),
      c.operands.end());
  std::vector<std::vector<ImportedRef>> collected(
      body.outputs.size() > carried + 1 ? body.outputs.size() - carried - 1 : 0);
  int64_t i = 0;
  for (; again && i < count; ++i) {
    c.importer.count_iteration(body);
    const std::vector<ImportedRef> outputs =
        c.importer.import_subgraph(body, c.scope, iteration_inputs(i, state));
    for (const ImportedRef& output : outputs)
      if (output->failed) c.refuse("a node of its body cannot be imported");
    state.assign(outputs.begin() + 1, outputs.begin() + 1 + static_cast<int64_t>(carried));
    for (size_t k = 0; k < collected.size(); ++k) collected[k].push_back(outputs[1 + carried + k]);
    again = holds(c, *outputs[0]);
  }
  if (again && !counted) c.run_subgraph("its iterations are too many for one graph");
  std::vector<ImportedRef> results = state;
  for (size_t k = 0; k < collected.size(); ++k) {
    const bool wanted = carried + k < c.node.outputs.size() && !c.node.outputs[carried + k].empty();
    const OnnxValue& declared = body.outputs[1 + carried + k];
    if (!wanted)
      results.push_back(nullptr);
    else if (i == 0 && !(declared.type.dtype != DType::Undefined && declared.type.dims))
      results.push_back(undeclared_empty_stack(c, body, state, 1 + carried + k));
    else
      results.push_back(stacked(c, collected[k], 0, declared));
  }
  return results;
}

struct ScannedOperand {
  Value* tensor = nullptr;
  OnnxMeaning meaning = OnnxMeaning::Numbers;
};

ScannedOperand scanned_operand(const ControlCall& c, Imported& value) {
  if (value.meaning == OnnxMeaning::Maps) c.refuse("its operands must be tensors");
  return {c.importer.tensor_of(value), value.meaning};
}

// Element `i` of a tensor along `axis`, without that axis.
ImportedRef element(const ControlCall& c, const ScannedOperand& operand, int64_t axis, int64_t i) {
  Value* tensor = operand.tensor;
  Graph& graph = c.importer.graph();
  Value* part = emit(graph, "Slice", {tensor},
                     {{"axis", axis}, {"start", DimExpr(i)}, {"end", DimExpr(i + 1)}});
  Dims dims = part->dims;
  dims.erase(dims.begin() + axis);
  ImportedRef result = Importer::of_tensor(emit(graph, "Reshape", {part}, {{"shape", dims}}));
  result->meaning = operand.meaning;
  return result;
}

int64_t list_at(const std::vector<int64_t>& list, size_t i) {
  return i < list.size() ? list.at(i) : 0;
}

int64_t from_front(int64_t axis, size_t rank) {
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

// A Scan: its operands, and the axes and directions of them.
struct ScanCall {
  std::vector<ImportedRef> state;
  std::vector<ScannedOperand> scanned;
  std::vector<int64_t> axes, backward, out_axes, out_backward;
};

std::vector<ImportedRef> scan(const ControlCall& c, const ScanCall& s) {
  const OnnxGraph& body = c.subgraph("body");
  const size_t carried = s.state.size();
  if (body.outputs.size() < carried) c.refuse("its body must return the state");
  std::vector<int64_t> along;
  for (size_t k = 0; k < s.scanned.size(); ++k) {
    const size_t rank = s.scanned[k].tensor->rank();
    along.push_back(from_front(list_at(s.axes, k), rank));
    if (along[k] < 0 || along[k] >= static_cast<int64_t>(rank))
      c.refuse(str("axis ", list_at(s.axes, k), " must be within rank ", rank));
  }
  const int64_t count =
      c.importer.sizes().fix(s.scanned.at(0).tensor->dims.at(static_cast<size_t>(along.at(0))));
  if (is_long(count, body)) c.run_subgraph("its steps are too many for one graph");
  std::vector<ImportedRef> state = s.state;
  std::vector<std::vector<ImportedRef>> collected(body.outputs.size() - carried);
  for (int64_t i = 0; i < count; ++i) {
    c.importer.count_iteration(body);
    std::vector<ImportedRef> inputs = state;
    for (size_t k = 0; k < s.scanned.size(); ++k)
      inputs.push_back(
          element(c, s.scanned[k], along.at(k), list_at(s.backward, k) == 1 ? count - 1 - i : i));
    const std::vector<ImportedRef> outputs = c.importer.import_subgraph(body, c.scope, inputs);
    for (const ImportedRef& output : outputs)
      if (output->failed) c.refuse("a node of its body cannot be imported");
    state.assign(outputs.begin(), outputs.begin() + static_cast<int64_t>(carried));
    for (size_t k = 0; k < collected.size(); ++k) collected[k].push_back(outputs[carried + k]);
  }
  std::vector<ImportedRef> results = state;
  for (size_t k = 0; k < collected.size(); ++k) {
    if (list_at(s.out_backward, k) == 1) std::reverse(collected[k].begin(), collected[k].end());
    results.push_back(stacked(c, collected[k], list_at(s.out_axes, k), body.outputs[carried + k]));
  }
  return results;
}

size_t scanned_count(const ControlCall& c, size_t operands) {
  const auto scanned = static_cast<size_t>(c.integer("num_scan_inputs", 0));
  if (scanned == 0 || scanned > operands) c.refuse("num_scan_inputs must be given");
  return scanned;
}

// Of operator set 8: each element of the batch by itself.
std::vector<ImportedRef> scan_batch(const ControlCall& c) {
  if (c.has(0)) c.unsupported("sequence_lens of a Scan of operator set 8 are not supported");
  const size_t operands = c.operands.empty() ? 0 : c.operands.size() - 1;
  const size_t carried = operands - scanned_count(c, operands);
  std::vector<ScannedOperand> tensors;
  for (size_t k = 0; k < operands; ++k) {
    tensors.push_back(scanned_operand(c, c.operand(k + 1)));
    if (tensors[k].tensor->rank() < (k < carried ? 1 : 2))
      c.refuse("its operands must have a batch");
  }
  const int64_t batch = c.importer.sizes().fix(tensors.at(0).tensor->dims.at(0));
  std::vector<std::vector<ImportedRef>> results;
  for (int64_t b = 0; b < batch; ++b) {
    ScanCall s;
    for (size_t k = 0; k < operands; ++k) {
      ImportedRef part = element(c, tensors[k], 0, b);
      if (k < carried)
        s.state.push_back(std::move(part));
      else
        s.scanned.push_back(scanned_operand(c, *part));
    }
    s.backward = c.integers("directions");
    std::vector<ImportedRef> of_element = scan(c, s);
    results.resize(of_element.size());
    for (size_t k = 0; k < of_element.size(); ++k) results[k].push_back(std::move(of_element[k]));
  }
  std::vector<ImportedRef> joined;
  for (const std::vector<ImportedRef>& parts : results) joined.push_back(stacked(c, parts, 0, {}));
  return joined;
}

std::vector<ImportedRef> import_scan(const ControlCall& c) {
  if (auto distances = import_distance_scan(c)) return *distances;
  if (c.opset < 9) return scan_batch(c);
  const size_t carried = c.operands.size() - scanned_count(c, c.operands.size());
  ScanCall s;
  for (size_t k = 0; k < c.operands.size(); ++k) {
    if (k < carried)
      s.state.push_back(c.operands[k]);
    else
      s.scanned.push_back(scanned_operand(c, c.operand(k)));
  }
  s.axes = c.integers("scan_input_axes");
  s.backward = c.integers("scan_input_directions");
  s.out_axes = c.integers("scan_output_axes");
  s.out_backward = c.integers("scan_output_directions");
  return scan(c, s);
}

const ControlRegistrar kRows({{"If", import_if}, {"Loop", import_loop}, {"Scan", import_scan}});

}  // namespace
}  // namespace ortmodule
