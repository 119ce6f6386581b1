// Functions of a model, whose nodes are imported where they are called.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "importer/importer.h"
#include "importer/operator_forms.h"
#include "ops/torch_call.h"

namespace ortmodule {

// The node with the attributes of the function's call in place of references to them.
std::shared_ptr<const OnnxNode> Importer::with_attrs(const OnnxNode& node, const OnnxAttrs* call) {
  const bool refers = std::any_of(node.attrs.begin(), node.attrs.end(), [](const auto& attr) {
    return std::holds_alternative<OnnxAttrReference>(attr.second);
  });
  if (!refers) return nullptr;
  auto copy = std::make_shared<OnnxNode>(node);
  std::erase_if(copy->attrs, [&](auto& attr) {
    const auto* reference = std::get_if<OnnxAttrReference>(&attr.second);
    if (!reference) return false;
    for (const auto& [name, value] : call ? *call : OnnxAttrs())
      if (name == reference->name) {
        attr.second = OnnxAttr(value);
        return false;
      }
    return true;  // the call leaves it out
  });
  return copy;
}

// An operator that the engine has goes before a function of its name, as in onnxruntime.
const OnnxFunction* Importer::find_function(const OnnxNode& node) const {
  constexpr int64_t kAnySet = std::numeric_limits<int64_t>::max();
  const auto [first, last] = functions_.equal_range(node.op);
  for (auto named = first; named != last; ++named)
    if (named->second->domain == node.domain && named->second->overload == node.overload) {
      const bool is_operator =
          find_operator_form(node.domain, node.op, kAnySet) &&
          (find_control_row(node.domain, node.op) || find_onnx_row(node.domain, node.op, kAnySet));
      return is_operator ? nullptr : named->second;
    }
  return nullptr;
}

// Of branches and bodies nothing is counted: they may never run. Nor of what is nested too deep.
size_t Importer::expanded_nodes(const OnnxFunction& function, int depth) {
  if (depth > kMostDepth) return 0;
  constexpr size_t kBusy = std::numeric_limits<size_t>::max();
  const auto [known, is_new] = expanded_nodes_.emplace(&function, kBusy);
  if (!is_new && known->second == kBusy)
    throw Refused(str("functions must not call themselves, but '", function.name, "' does"));
  if (!is_new) return known->second;
  size_t count = function.nodes.size();
  for (const OnnxNode& node : function.nodes)
    if (const OnnxFunction* inner = find_function(node))
      count = std::min(count + expanded_nodes(*inner, depth + 1), kMostNodes + 1);
  return expanded_nodes_[&function] = count;
}

namespace {

OnnxAttrs attrs_of_call(const OnnxFunction& function, const OnnxNode& node) {
  OnnxAttrs attrs = node.attrs;
  for (const auto& [name, value] : function.defaults)
    if (std::none_of(attrs.begin(), attrs.end(), [&](const auto& a) { return a.first == name; }))
      attrs.emplace_back(name, value);
  return attrs;
}

// An absent operand is an absent one of the function's nodes.
std::vector<OnnxNode> nodes_of_call(const OnnxFunction& function, const OnnxNode& node) {
  const auto is_absent = [&](const std::string& name) {
    const auto at = std::find(function.inputs.begin(), function.inputs.end(), name);
    if (at == function.inputs.end()) return false;
    const auto i = static_cast<size_t>(at - function.inputs.begin());
    return i >= node.inputs.size() || node.inputs[i].empty();
  };
  std::vector<OnnxNode> nodes = function.nodes;
  for (OnnxNode& each : nodes)
    for (std::string& name : each.inputs)
      if (is_absent(name)) name.clear();
  return nodes;
}

}  // namespace

void Importer::check_call(const OnnxFunction& function, const OnnxNode& node) {
  const auto check = [](size_t found, size_t most, std::string_view what) {
    if (found > most)
      throw Refused(str("it must have at most ", most, " ", what, ", but found ", found));
  };
  check(node.inputs.size(), function.inputs.size(), "operands");
  check(node.outputs.size(), function.outputs.size(), "outputs");
}

std::vector<ImportedRef> Importer::call_function(const OnnxFunction& function, const OnnxNode& node,
                                                 const ImportScope& scope,
                                                 const std::vector<ImportedRef>& operands) {
  if (scope.depth >= kMostDepth)
    throw Unsupported(str("functions must be nested at most ", kMostDepth, " deep"));
  if (imported_nodes_ + expanded_nodes(function, scope.depth) > kMostNodes)
    throw Unsupported(str("a model must have at most ", kMostNodes,
                          " nodes after its functions are expanded, but its call makes it more"));
  const OnnxAttrs attrs = attrs_of_call(function, node);
  ImportScope inner;
  inner.opsets = &function.opsets;
  inner.attrs = &attrs;
  inner.depth = scope.depth + 1;
  for (size_t i = 0; i < function.inputs.size() && i < operands.size(); ++i)
    if (operands.at(i)) inner.names[function.inputs[i]] = operands.at(i);
  auto kept = std::make_shared<std::vector<OnnxNode>>(nodes_of_call(function, node));
  function_bodies_.push_back(kept);
  import_nodes(*kept, inner);
  std::vector<ImportedRef> results;
  for (const std::string& name : function.outputs) results.push_back(inner.find(name));
  return results;
}

ModelPart Importer::function_part(const OnnxFunction& function, const OnnxNode& node) {
  ModelPart part;
  auto graph = std::make_shared<OnnxGraph>();
  graph->name = function.name;
  graph->nodes = nodes_of_call(function, node);
  part.graph = std::move(graph);
  for (size_t i = 0; i < function.inputs.size() && i < node.inputs.size(); ++i)
    if (!node.inputs[i].empty()) part.inputs.push_back(function.inputs[i]);
  part.outputs = function.outputs;
  part.opsets = std::shared_ptr<const std::vector<OnnxOpset>>(std::shared_ptr<const void>(),
                                                              &function.opsets);
  part.attrs = std::make_shared<const OnnxAttrs>(attrs_of_call(function, node));
  return part;
}

}  // namespace ortmodule
