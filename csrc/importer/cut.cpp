// Cuts: where a model must be run up to a node before the rest can be planned.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "importer/free_names.h"
#include "importer/importer.h"
#include "importer/missing_operator.h"
#include "importer/operator_forms.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

// What the cuts of a model may take, in values that are passed on: each takes memory, however small
// the file. Bodies are run within each other.
constexpr int kMostCutCost = 1 << 17, kCutCost = 16, kCutCostOfBody = kMostCutCost / 512;

std::vector<const OnnxGraph*> subgraphs_of(const OnnxNode& node) {
  std::vector<const OnnxGraph*> graphs;
  for (const auto& [name, value] : node.attrs)
    if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value))
      graphs.push_back(graph->get());
  return graphs;
}

// A graph that belongs to a node's attribute and lives as long.
std::shared_ptr<const OnnxGraph> graph_attr(const OnnxNode& node, std::string_view name) {
  for (const auto& [key, value] : node.attrs)
    if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value);
        graph && key == name)
      return *graph;
  throw Refused(str("attribute '", name, "' must be a graph"));
}

// The attributes that are run for a node, in the order of ModelCut::bodies.
std::vector<const char*> body_names(const OnnxNode& node) {
  if (node.op == "If") return {"then_branch", "else_branch"};
  if (node.domain.empty()) return {"body"};
  std::vector<const char*> names{"decoder"};
  for (const char* other : {"init_decoder", "encoder"})
    if (std::ranges::any_of(node.attrs, [&](const auto& attr) { return attr.first == other; }))
      names.push_back(other);
  return names;
}

std::vector<std::string> names_of(const std::vector<OnnxValue>& values) {
  std::vector<std::string> names;
  for (const OnnxValue& value : values) names.push_back(value.name);
  return names;
}

// A constant for another part, which turns texts into numbers itself.
const OnnxTensor& of_file(const Imported& value) {
  return value.texts ? *value.texts : *value.constant;
}

void add_missing(std::vector<std::string>& names, const std::vector<std::string>& more) {
  for (const std::string& name : more)
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

ModelPart whole_model(const OnnxModel& model) {
  ModelPart part;
  part.graph = std::shared_ptr<const OnnxGraph>(std::shared_ptr<const void>(), &model.graph);
  part.opsets =
      std::shared_ptr<const std::vector<OnnxOpset>>(std::shared_ptr<const void>(), &model.opsets);
  part.outputs = names_of(model.graph.outputs);
  return part;
}

void Importer::import_part(const ModelPart& part, ImportScope& scope) {
  const std::vector<OnnxNode>& nodes = part.graph->nodes;
  for (size_t i = part.first_node; i < nodes.size(); ++i) {
    try {
      import_node(nodes[i], scope);
    } catch (const DataNeeded& needed) {
      try {
        if (helps(needed, nodes[i], scope)) return cut_at(i, needed, part, scope);
        fail(nodes[i], needed.what(), Fault::Unsupported);
      } catch (const Refused& refused) {
        fail(nodes[i], refused);
      }
      check_operators(nodes, i + 1, *part.opsets);
      throw_failures();
    }
  }
}

// Contents help if an operand is computed by the graph: behind a cut it is an input.
bool Importer::helps(const DataNeeded& needed, const OnnxNode& node,
                     const ImportScope& scope) const {
  if (needed.sized || needed.is_inside || needed.runs_subgraph) return true;
  std::vector<std::string> names = node.inputs;
  for (const OnnxGraph* graph : subgraphs_of(node)) add_missing(names, free_names(*graph));
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const ImportedRef value = name.empty() ? nullptr : scope.find(name);
    return value && value->tensor && !value->constant && value->input < 0;
  });
}

void Importer::cut_at(size_t index, const DataNeeded& needed, const ModelPart& part,
                      ImportScope& scope) {
  const OnnxNode& node = part.graph->nodes[index];
  if (part.cut_cost >= kMostCutCost) {
    fail(node,
         str("data must cut a model less often or at fewer values that later nodes read (",
             needed.what(), ")"),
         Fault::Unsupported);
    throw_failures();
  }
  const auto owned = with_attrs(node, scope.attrs);
  ModelCut cut;
  cut.node = owned ? *owned : node;
  if (needed.is_inside || needed.runs_subgraph)
    cut.kind = ModelCut::Kind::Control;
  else if (needed.sized)
    cut.kind = ModelCut::Kind::Sized;
  cut.rest = part;
  cut.rest.first_node = index + (cut.kind == ModelCut::Kind::Content ? 0 : 1);
  if (cut.kind == ModelCut::Kind::Sized) cut.attrs = *needed.sized;
  if (!part.reads) {
    check_operators(part.graph->nodes, cut.rest.first_node, *part.opsets);
    if (!failures_.empty()) throw_failures();
    cut.rest.reads = std::make_shared<const LaterReads>(part.graph->nodes);
  }
  if (cut.kind == ModelCut::Kind::Control) add_bodies(scope, part, cut);
  if (cut.kind != ModelCut::Kind::Content)
    for (const std::string& name : cut.node.inputs) carry(name, scope, true, cut);
  add_rest(part, scope, cut);
  cut.rest.cut_cost += kCutCost + static_cast<int>(cut.rest.inputs.size());
  erase_dead_nodes();
  result_.cut = std::move(cut);
}

// What the rest reads and computes.
void Importer::add_rest(const ModelPart& part, const ImportScope& scope, ModelCut& cut) {
  ModelPart& rest = cut.rest;
  rest.inputs.clear();
  rest.outputs.clear();
  rest.constants.clear();
  const std::vector<std::string>& made = cut.node.outputs;
  const auto is_made = [&](const std::string& name) {
    return cut.kind != ModelCut::Kind::Content &&
           std::find(made.begin(), made.end(), name) != made.end();
  };
  for (const std::string& name : part.outputs) {
    if (scope.find(name))
      carry(name, scope, true, cut);
    else if (!is_made(name))
      rest.outputs.push_back(name);
  }
  for (const std::string& name : rest.reads->from(rest.first_node)) {
    const ImportedRef value = scope.find(name);
    if (is_made(name)) {
      rest.inputs.push_back(name);
    } else if (value && value->constant) {
      rest.constants[name] = of_file(*value);
    } else if (value) {
      carry(name, scope, false, cut);
      rest.inputs.push_back(name);
    }
  }
}

// The parts that are run for a node: each reads its own inputs and what it captures.
void Importer::add_bodies(const ImportScope& scope, const ModelPart& part, ModelCut& cut) {
  if (const OnnxFunction* function = find_function(cut.node)) {
    cut.bodies.push_back(function_part(*function, cut.node));
    cut.bodies.back().cut_cost = part.cut_cost + kCutCostOfBody;
    return;
  }
  for (const char* name : body_names(cut.node)) {
    ModelPart body;
    body.graph = graph_attr(cut.node, name);
    body.opsets = part.opsets;
    body.attrs = part.attrs;
    body.cut_cost = part.cut_cost + kCutCostOfBody;
    body.inputs = names_of(body.graph->inputs);
    body.outputs = names_of(body.graph->outputs);
    for (const std::string& captured : free_names(*body.graph)) {
      const ImportedRef value = scope.find(captured);
      if (!value)
        throw Error(str("[import] ", node_title(cut.node),
                        " must read values that are computed before ", "it, but '", captured,
                        "' is not"));
      if (value->constant) {
        body.constants[captured] = of_file(*value);
      } else {
        carry(captured, scope, false, cut);
        body.inputs.push_back(captured);
      }
    }
    cut.bodies.push_back(std::move(body));
  }
}

CarriedValue::Tensor Importer::carry_tensor(Imported& value) {
  if (value.input >= 0) return {true, static_cast<size_t>(value.input)};
  Value* tensor = tensor_of(value);
  const auto& outputs = graph().outputs();
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].value == tensor) return {false, i};
  add_output_tensor(tensor);
  return {false, graph().outputs().size() - 1};
}

void Importer::carry(const std::string& name, const ImportScope& scope, bool must, ModelCut& cut) {
  const ImportedRef value = name.empty() ? nullptr : scope.find(name);
  if (!value || value->failed || (value->constant && !must)) return;
  for (const CarriedValue& carried : cut.values)
    if (carried.name == name) return;
  if (value->meaning == OnnxMeaning::Maps)
    return fail(cut.node, "maps cannot be read behind sizes that data decides");
  CarriedValue carried;
  carried.name = name;
  carried.texts = value->meaning == OnnxMeaning::Texts;
  if (value->is_absent) {
    carried.kind = ValueForm::Kind::Absent;
  } else if (value->sequence) {
    carried.kind = ValueForm::Kind::Sequence;
    for (const ImportedRef& element : *value->sequence) {
      if (element->meaning != OnnxMeaning::Numbers)
        return fail(cut.node, "sequences of strings cannot be read behind sizes that data decides");
      carried.tensors.push_back(carry_tensor(*element));
    }
  } else {
    carried.tensors.push_back(carry_tensor(*value));
  }
  cut.values.push_back(std::move(carried));
}

void check_operators(const OnnxModel& model) {
  const ImportRequest none;
  Importer(model, none).check_operators();
}

void Importer::check_operators() {
  check_operators(model_.graph.nodes, 0, model_.opsets);
  if (!failures_.empty()) throw_failures();
}

// What is in a branch may never be taken: there it only has to be valid.
void Importer::check_operators(const std::vector<OnnxNode>& nodes, size_t first,
                               const std::vector<OnnxOpset>& opsets, int depth, bool in_branch) {
  if (depth > kMostDepth) return;
  for (size_t i = first; i < nodes.size(); ++i) {
    const OnnxNode& node = nodes[i];
    const bool branches = in_branch || (node.domain.empty() && node.op == "If");
    for (const OnnxGraph* graph : subgraphs_of(node))
      check_operators(graph->nodes, 0, opsets, depth + 1, branches);
    try {
      check_operator(node, opsets, in_branch);
    } catch (const Refused& refused) {
      fail(node, refused);
    }
    const OnnxFunction* function = find_function(node);
    if (function && checked_functions_.emplace(function, in_branch).second)
      check_operators(function->nodes, 0, function->opsets, depth + 1, in_branch);
  }
}

void Importer::check_operator(const OnnxNode& node, const std::vector<OnnxOpset>& opsets,
                              bool in_branch) const {
  ImportScope scope;
  scope.opsets = &opsets;
  const OnnxFunction* function = find_function(node);
  const bool in_function = &opsets != &model_.opsets;
  if ((function || in_function) &&
      std::ranges::find(opsets, node.domain, &OnnxOpset::domain) == opsets.end())
    throw Refused(str("the ", in_function ? "function" : "model",
                      " must import the operator set of its domain '", node.domain,
                      "' (opset_import)"));
  if (function) return check_call(*function, node);
  const int64_t opset = scope.opset(node.domain);
  try {
    if (!find_control_row(node.domain, node.op) && !find_onnx_row(node.domain, node.op, opset))
      refuse_operator(node, opset);
  } catch (const Unsupported&) {
    if (!in_branch) throw;
  }
  check_form(node, opset);
}

// Of a subgraph that was given up, and of what only the rest would have read.
void Importer::erase_dead_nodes() {
  std::vector<Node*> nodes = graph().node_pointers();
  for (size_t i = nodes.size(); i-- > 0;) {
    const std::vector<Value*>& outputs = nodes[i]->outputs();
    if (std::all_of(outputs.begin(), outputs.end(), [](const Value* value) {
          return value->uses().empty() && !value->is_graph_output();
        }))
      graph().erase(nodes[i]);
  }
}

}  // namespace ortmodule
