#include "quantization/graph_edit.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ortmodule {
namespace {

using Names = std::set<std::string>;
using GraphPtr = std::shared_ptr<const OnnxGraph>;

void each_subgraph(const OnnxNode& node, const std::function<void(const OnnxGraph&)>& visit) {
  for (const auto& [name, value] : node.attrs) {
    if (const auto* graph = std::get_if<GraphPtr>(&value)) visit(**graph);
    if (const auto* graphs = std::get_if<std::vector<GraphPtr>>(&value))
      for (const GraphPtr& graph : *graphs) visit(*graph);
  }
}

// What the graph reads and does not hold itself.
Names outer_values(const OnnxGraph& graph) {
  Names own, read;
  for (const OnnxValue& input : graph.inputs) own.insert(input.name);
  for (const OnnxInitializer& initializer : graph.initializers) own.insert(initializer.name);
  for (const OnnxNode& node : graph.nodes) {
    own.insert(node.outputs.begin(), node.outputs.end());
    read.insert(node.inputs.begin(), node.inputs.end());
    read.merge(outer_values(node));
  }
  for (const OnnxValue& output : graph.outputs) read.insert(output.name);
  Names outer;
  std::set_difference(read.begin(), read.end(), own.begin(), own.end(),
                      std::inserter(outer, outer.end()));
  outer.erase("");
  return outer;
}

// All values that are read in the graph: by nodes, by their subgraphs, as outputs.
Names values_read(const OnnxGraph& graph) {
  Names read;
  for (const OnnxNode& node : graph.nodes) {
    read.insert(node.inputs.begin(), node.inputs.end());
    read.merge(outer_values(node));
  }
  for (const OnnxValue& output : graph.outputs) read.insert(output.name);
  return read;
}

bool remove_nodes(OnnxGraph& graph, const Names& candidates) {
  const Names read = values_read(graph);
  const auto unread = [&](const OnnxNode& node) {
    return !node.outputs.empty() && candidates.count(node.outputs[0]) > 0 &&
           std::none_of(node.outputs.begin(), node.outputs.end(),
                        [&](const std::string& output) { return read.count(output) > 0; });
  };
  return std::erase_if(graph.nodes, unread) > 0;
}

void clean(OnnxGraph& graph, const Names& candidates) {
  for (OnnxNode& node : graph.nodes)
    change_subgraphs(node, [&](OnnxGraph& inner, const std::string&) { clean(inner, candidates); });
  while (remove_nodes(graph, candidates)) {
  }
  const Names read = values_read(graph);
  Names produced, gone;
  for (const OnnxNode& node : graph.nodes)
    produced.insert(node.outputs.begin(), node.outputs.end());
  std::erase_if(graph.initializers, [&](const OnnxInitializer& initializer) {
    const bool unused = read.count(initializer.name) == 0 || produced.count(initializer.name) > 0;
    if (unused) gone.insert(initializer.name);
    return unused;
  });
  std::erase_if(graph.inputs, [&](const OnnxValue& input) { return gone.count(input.name) > 0; });
  for (const OnnxValue& input : graph.inputs) produced.insert(input.name);
  for (const OnnxInitializer& initializer : graph.initializers) produced.insert(initializer.name);
  std::erase_if(graph.values,
                [&](const OnnxValue& value) { return produced.count(value.name) == 0; });
}

}  // namespace

TakenNames::TakenNames(const OnnxModel& model) { add(model.graph); }

void TakenNames::add(const OnnxGraph& graph) {
  for (const OnnxValue& input : graph.inputs) names_.insert(input.name);
  for (const OnnxValue& output : graph.outputs) names_.insert(output.name);
  for (const OnnxInitializer& initializer : graph.initializers) names_.insert(initializer.name);
  for (const OnnxNode& node : graph.nodes) {
    names_.insert(node.outputs.begin(), node.outputs.end());
    names_.insert(node.inputs.begin(), node.inputs.end());
    each_subgraph(node, [&](const OnnxGraph& inner) { add(inner); });
  }
}

std::string TakenNames::fresh(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 1; !names_.insert(name).second; ++i) name = str(wanted, "_", i);
  return name;
}

const OnnxAttr* find_attr(const OnnxNode& node, std::string_view name) {
  for (const auto& [key, value] : node.attrs)
    if (key == name) return &value;
  return nullptr;
}

int64_t integer_attr(const OnnxNode& node, std::string_view name, int64_t fallback) {
  const OnnxAttr* attr = find_attr(node, name);
  const auto* value = attr ? std::get_if<int64_t>(attr) : nullptr;
  return value ? *value : fallback;
}

double number_attr(const OnnxNode& node, std::string_view name, double fallback) {
  const OnnxAttr* attr = find_attr(node, name);
  const auto* value = attr ? std::get_if<double>(attr) : nullptr;
  return value ? *value : fallback;
}

const std::string& input_of(const OnnxNode& node, size_t index) {
  static const std::string absent;
  return index < node.inputs.size() ? node.inputs[index] : absent;
}

OnnxNode make_node(std::string op, std::vector<std::string> inputs,
                   std::vector<std::string> outputs, std::string name, OnnxAttrs attrs,
                   std::string domain) {
  OnnxNode node;
  node.op = std::move(op);
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.name = std::move(name);
  node.attrs = std::move(attrs);
  node.domain = std::move(domain);
  return node;
}

void change_subgraphs(OnnxNode& node,
                      const std::function<void(OnnxGraph&, const std::string& attr)>& change) {
  auto changed = [&](const GraphPtr& graph, const std::string& name) {
    auto copy = std::make_shared<OnnxGraph>(*graph);
    change(*copy, name);
    return GraphPtr(std::move(copy));
  };
  for (auto& [name, value] : node.attrs) {
    if (auto* graph = std::get_if<GraphPtr>(&value)) *graph = changed(*graph, name);
    if (auto* graphs = std::get_if<std::vector<GraphPtr>>(&value))
      for (GraphPtr& graph : *graphs) graph = changed(graph, name);
  }
}

Names outer_values(const OnnxNode& node) {
  Names outer;
  each_subgraph(node, [&](const OnnxGraph& graph) { outer.merge(outer_values(graph)); });
  return outer;
}

int64_t standard_opset(const OnnxModel& model) {
  for (const OnnxOpset& opset : model.opsets)
    if (opset.domain.empty()) return opset.version;
  return 0;
}

void remove_unread(OnnxModel& model, const Names& candidates) { clean(model.graph, candidates); }

}  // namespace ortmodule
