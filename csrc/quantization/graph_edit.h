// What transformations of a model share: names that are not taken, attributes, and the removal of
// what nothing reads any more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// Names of values and nodes of a model, its subgraphs included.
class TakenNames {
 public:
  explicit TakenNames(const OnnxModel& model);
  /// `wanted`, or with a number behind it if that is taken; taken from now on.
  std::string fresh(const std::string& wanted);
  bool has(const std::string& name) const { return names_.count(name) > 0; }

 private:
  void add(const OnnxGraph& graph);
  std::unordered_set<std::string> names_;
};

const OnnxAttr* find_attr(const OnnxNode& node, std::string_view name);
int64_t integer_attr(const OnnxNode& node, std::string_view name, int64_t fallback);
double number_attr(const OnnxNode& node, std::string_view name, double fallback);

/// "" for an input that the node does not have.
const std::string& input_of(const OnnxNode& node, size_t index);

OnnxNode make_node(std::string op, std::vector<std::string> inputs,
                   std::vector<std::string> outputs, std::string name = "", OnnxAttrs attrs = {},
                   std::string domain = "");

/// Replaces each graph of a node's attributes by what `change` makes of it.
void change_subgraphs(OnnxNode& node,
                      const std::function<void(OnnxGraph&, const std::string& attr)>& change);

/// The values of outer graphs that the node's subgraphs read.
std::set<std::string> outer_values(const OnnxNode& node);

/// The version of the standard operator set; 0 if the model has none.
int64_t standard_opset(const OnnxModel& model);

/// Removes, from the graph and its subgraphs, the nodes without a reader whose first output is in
/// `candidates`, then initializers without a reader (and their inputs), and types of values that
/// are gone. Initializers whose name a node produces are removed too.
void remove_unread(OnnxModel& model, const std::set<std::string>& candidates);

}  // namespace ortmodule
