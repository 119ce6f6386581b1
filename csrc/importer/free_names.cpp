#include "importer/free_names.h"

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <variant>

namespace ortmodule {
namespace {

// Calls `read` with the names that a node and its subgraphs read.
template <class Read>
void for_each_read(const OnnxNode& node, const Read& read) {
  for (const std::string& name : node.inputs)
    if (!name.empty()) read(name);
  for (const auto& [attr, value] : node.attrs)
    if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value))
      for (const std::string& name : free_names(**graph)) read(name);
}

// Collects names in the order in which they are read.
class Reader {
 public:
  void read(const std::string& name) {
    if (defined_.count(name) > 0) return;
    if (seen_.insert(name).second) names.push_back(name);
  }
  void define(const std::string& name) { defined_.insert(name); }

  void read_nodes(const std::vector<OnnxNode>& nodes) {
    for (const OnnxNode& node : nodes) {
      for_each_read(node, [this](const std::string& name) { read(name); });
      for (const std::string& name : node.outputs) define(name);
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
  reader.read_nodes(graph.nodes);
  for (const OnnxValue& output : graph.outputs)
    if (!output.name.empty()) reader.read(output.name);
  return reader.names;
}

LaterReads::LaterReads(const std::vector<OnnxNode>& nodes) {
  std::unordered_map<std::string, size_t> places;
  const auto named = [&](const std::string& name) -> Name& {
    const auto [place, is_new] = places.try_emplace(name, names_.size());
    if (is_new) names_.push_back({name});
    return names_[place->second];
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    for_each_read(nodes[i], [&](const std::string& name) { named(name).last_reader = i; });
    for (const std::string& name : nodes[i].outputs)
      if (!name.empty()) named(name).maker = i;
  }
}

std::vector<std::string> LaterReads::from(size_t first) const {
  std::vector<std::string> found;
  for (const Name& name : names_) {
    const bool is_read = name.last_reader != kNone && name.last_reader >= first;
    const bool is_made_before = name.maker == kNone || name.maker < first;
    if (is_read && is_made_before) found.push_back(name.name);
  }
  return found;
}

}  // namespace ortmodule
