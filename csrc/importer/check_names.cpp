#include "importer/check_names.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <variant>

#include "base/error.h"
#include "importer/importer.h"

namespace ortmodule {
namespace {

// The names of one graph, within those of the graph around it.
class NameScope {
 public:
  explicit NameScope(const NameScope* outer) : outer_(outer) {}

  void define(std::string_view name) {
    if (!name.empty()) names_.insert(name);
  }
  bool is_new(std::string_view name) { return names_.insert(name).second; }
  bool is_outer(std::string_view name) const { return outer_ && outer_->has(name); }
  bool has(std::string_view name) const { return names_.count(name) > 0 || is_outer(name); }

  void check(const std::vector<OnnxNode>& nodes);
  void check(const OnnxGraph& graph);

 private:
  void check(const OnnxNode& node, const std::vector<OnnxNode>& nodes);

  const NameScope* outer_;
  std::unordered_set<std::string_view> names_;
};

bool is_constant(const OnnxNode& node) { return node.domain.empty() && node.op == "Constant"; }

bool computes(const OnnxNode& node, const std::string& name) {
  return std::ranges::find(node.outputs, name) != node.outputs.end();
}

// `place`: of the message, which decides the kind of error.
[[noreturn]] void refuse_input(std::string_view place, const OnnxNode& node,
                               const std::string& name, const std::vector<OnnxNode>& nodes) {
  if (std::ranges::any_of(nodes, [&](const OnnxNode& other) { return computes(other, name); }))
    throw Error(str("[model] nodes must not form a cycle, but ", node_title(node),
                    " is needed to compute its own input '", name, "'"));
  throw Error(str(place, " what a node reads must be an input, an initializer or computed before, ",
                  "but found nothing of the name '", name, "', which ", node_title(node),
                  " reads"));
}

void NameScope::check(const OnnxNode& node, const std::vector<OnnxNode>& nodes) {
  for (const std::string& name : node.inputs)
    if (!name.empty() && !has(name)) refuse_input(outer_ ? "[model]" : "[name]", node, name, nodes);
  for (const auto& [key, value] : node.attrs)
    if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value); graph && *graph)
      NameScope(this).check(**graph);
  // Constants are initializers by another name, which may hide a value of the graph around.
  const bool may_hide = is_constant(node);
  for (const std::string& name : node.outputs)
    ORTM_CHECK(name.empty() || (is_new(name) && (may_hide || !is_outer(name))),
               "[model] each value must have a name of its own, but ", "found another '", name,
               "', an output of ", node_title(node));
}

void NameScope::check(const std::vector<OnnxNode>& nodes) {
  std::unordered_set<std::string_view> titles;
  for (const OnnxNode& node : nodes) {
    check(node, nodes);
    ORTM_CHECK(node.name.empty() || is_constant(node) || titles.insert(node.name).second,
               "[model] each node must have a name of its own or none, but found another ",
               node_title(node));
  }
}

void NameScope::check(const OnnxGraph& graph) {
  for (const OnnxValue& input : graph.inputs) define(input.name);
  for (const OnnxInitializer& initializer : graph.initializers) define(initializer.name);
  check(graph.nodes);
  for (const OnnxValue& output : graph.outputs) {
    ORTM_CHECK(has(output.name), "[model] an output must be an input, an initializer or computed ",
               "by a node, but found nothing of the name '", output.name, "'");
    ORTM_CHECK(names_.count(output.name) > 0, "[model] an output of a branch or body must be one ",
               "of its own values, but '", output.name, "' is of the graph around it: add an ",
               "Identity");
  }
}

}  // namespace

void check_names(const OnnxModel& model) {
  NameScope(nullptr).check(model.graph);
  for (const OnnxFunction& function : model.functions) {
    NameScope scope(nullptr);
    for (const std::string& name : function.inputs) scope.define(name);
    scope.check(function.nodes);
  }
}

}  // namespace ortmodule
