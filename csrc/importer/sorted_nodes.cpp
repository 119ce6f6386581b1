#include "importer/sorted_nodes.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "importer/free_names.h"

namespace ortmodule {
namespace {

using Subgraph = std::shared_ptr<const OnnxGraph>;

// By node: the nodes that it reads.
std::vector<std::vector<size_t>> read_by(const std::vector<OnnxNode>& nodes) {
  std::unordered_map<std::string_view, size_t> made_by;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const std::string& name : nodes[i].outputs)
      if (!name.empty()) made_by.emplace(name, i);
  std::vector<std::vector<size_t>> read(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto add = [&](const std::string& name) {
      const auto found = made_by.find(name);
      if (found != made_by.end()) read[i].push_back(found->second);
    };
    std::ranges::for_each(nodes[i].inputs, add);
    for (const auto& [key, value] : nodes[i].attrs)
      if (const auto* graph = std::get_if<Subgraph>(&value))
        std::ranges::for_each(free_names(**graph), add);
  }
  return read;
}

bool is_in_order(const std::vector<std::vector<size_t>>& read) {
  for (size_t i = 0; i < read.size(); ++i)
    if (std::ranges::any_of(read[i], [i](size_t node) { return node >= i; })) return false;
  return true;
}

bool is_sorted(const std::vector<OnnxNode>& nodes) {
  for (const OnnxNode& node : nodes)
    for (const auto& [key, value] : node.attrs)
      if (const auto* graph = std::get_if<Subgraph>(&value); graph && !is_sorted((*graph)->nodes))
        return false;
  return is_in_order(read_by(nodes));
}

// Of the nodes that may come next, the first one always does.
std::vector<size_t> order_of(const std::vector<std::vector<size_t>>& read) {
  std::vector<std::vector<size_t>> readers(read.size());
  std::vector<size_t> missing(read.size()), order;
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> next;
  for (size_t i = 0; i < read.size(); ++i) {
    missing[i] = read[i].size();
    for (const size_t node : read[i]) readers[node].push_back(i);
    if (missing[i] == 0) next.push(i);
  }
  while (!next.empty()) {
    const size_t node = next.top();
    next.pop();
    order.push_back(node);
    for (const size_t reader : readers[node])
      if (--missing[reader] == 0) next.push(reader);
  }
  for (size_t i = 0; i < read.size(); ++i)
    if (missing[i] > 0) order.push_back(i);
  return order;
}

void sort(std::vector<OnnxNode>& nodes) {
  if (is_sorted(nodes)) return;
  for (OnnxNode& node : nodes)
    for (auto& [key, value] : node.attrs)
      if (auto* graph = std::get_if<Subgraph>(&value)) {
        auto copy = std::make_shared<OnnxGraph>(**graph);
        sort(copy->nodes);
        *graph = std::move(copy);
      }
  std::vector<OnnxNode> in_order;
  in_order.reserve(nodes.size());
  for (const size_t node : order_of(read_by(nodes))) in_order.push_back(std::move(nodes[node]));
  nodes = std::move(in_order);
}

}  // namespace

OnnxModel with_sorted_nodes(OnnxModel model) {
  sort(model.graph.nodes);
  for (OnnxFunction& function : model.functions) sort(function.nodes);
  return model;
}

}  // namespace ortmodule
