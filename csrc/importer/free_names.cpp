#include "importer/free_names.h"

#include <memory>
#include <string_view>
#include <unordered_set>
#include <variant>

namespace ortmodule {
namespace {

// Collects names in the order in which they are read.
class Reader {
 public:
  void read(const std::string& name) {
    if (name.empty() || defined_.count(name) > 0) return;
    if (seen_.insert(name).second) names.push_back(name);
  }
  void define(const std::string& name) { defined_.insert(name); }

  void read_nodes(const std::vector<OnnxNode>& nodes, size_t first) {
    for (size_t i = first; i < nodes.size(); ++i) {
      for (const std::string& name : nodes[i].inputs) read(name);
      for (const auto& [attr, value] : nodes[i].attrs)
        if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value))
          for (const std::string& name : free_names(**graph)) read(name);
      for (const std::string& name : nodes[i].outputs) define(name);
    }
  }

  std::vector<std::string> names;

 private:
  std::unordered_set<std::string> defined_, seen_;
};

}  // namespace

std::vector<std::string> free_names(const OnnxGraph& graph) {
  Reader reader;
  for (const OnnxValue& input : graph.inputs) reader.define(input.name);
  for (const OnnxInitializer& initializer : graph.initializers) reader.define(initializer.name);
  reader.read_nodes(graph.nodes, 0);
  for (const OnnxValue& output : graph.outputs) reader.read(output.name);
  return reader.names;
}

std::vector<std::string> free_names(const std::vector<OnnxNode>& nodes, size_t first) {
  Reader reader;
  reader.read_nodes(nodes, first);
  return reader.names;
}

}  // namespace ortmodule
