#include "exporter/save_model.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "onnx/onnx_file.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

// The file's names of the graph's values and sizes.
class Renaming {
 public:
  Renaming(const Graph& graph, const SavedModel& model) : model_(model) {
    for (const GraphInput& input : graph.inputs()) {
      const std::string& name = input.value->name;
      const auto saved = std::find_if(model.inputs.begin(), model.inputs.end(),
                                      [&](const SavedInput& i) { return i.value == name; });
      if (saved != model.inputs.end()) {
        names_[name] = saved->name;
        settled_.insert(name);
        name_sizes(*input.value, *saved);
      } else if (name.starts_with(model.prefix)) {
        names_[name] = name.substr(model.prefix.size());
      }
    }
  }

  void name_output(const std::string& from, const std::string& to) {
    names_[from] = to;
    settled_.insert(from);
  }

  // Other values make way for the names of inputs and outputs.
  void separate(const OnnxGraph& graph) {
    std::unordered_set<std::string> taken;
    for (const std::string& name : settled_) taken.insert(names_.at(name));
    const auto add = [&](const std::string& name) {
      const auto known = names_.find(name);
      const std::string& to = known == names_.end() ? name : known->second;
      if (name.empty() || settled_.count(name) || taken.insert(to).second) return;
      std::string other = to + "_";
      while (!taken.insert(other).second) other += "_";
      names_[name] = other;
    };
    for (const OnnxInitializer& weight : graph.initializers) add(weight.name);
    for (const OnnxNode& node : graph.nodes)
      for (const std::string& name : node.outputs) add(name);
  }

  void apply(OnnxGraph& graph) const {
    for (OnnxNode& node : graph.nodes) {
      for (std::string& name : node.inputs) rename(name);
      for (std::string& name : node.outputs) rename(name);
      node.metadata.clear();
    }
    for (OnnxInitializer& initializer : graph.initializers) rename(initializer.name);
    for (auto* values : {&graph.inputs, &graph.outputs, &graph.values})
      for (OnnxValue& value : *values) {
        rename(value.name);
        if (!value.type.dims) continue;
        for (OnnxDim& dim : *value.type.dims) dim = renamed(dim);
      }
  }

 private:
  void name_sizes(const Value& value, const SavedInput& saved) {
    for (size_t d = 0; d < value.rank(); ++d) {
      const auto wanted = saved.any_sizes.find(static_cast<int64_t>(d));
      std::string symbol;
      const bool is_symbol = value.dims[d].is_symbol(&symbol);
      ORTM_CHECK(wanted == saved.any_sizes.end() || is_symbol, "[save_onnx] size ", d,
                 " of input '", saved.name, "' must be able to change, but the model fixes it to ",
                 value.dims[d], "; leave it out of dynamic_shapes, or change the model");
      if (!is_symbol) continue;
      if (wanted != saved.any_sizes.end())
        sizes_.emplace_back(symbol, DimExpr::symbol(wanted->second));
      else
        fixed_.emplace_back(symbol, DimExpr(saved.sizes.at(d)));
    }
  }

  void rename(std::string& name) const {
    auto known = names_.find(name);
    if (known != names_.end()) name = known->second;
  }

  OnnxDim renamed(const OnnxDim& dim) const {
    const auto* text = std::get_if<std::string>(&dim);
    if (!text) return dim;
    // A name of one input wins over the example's size of another.
    const DimExpr size = DimExpr::parse(*text).substitute(sizes_).substitute(fixed_);
    if (size.is_constant()) return size.value();
    return size.text();
  }

  const SavedModel& model_;
  std::unordered_map<std::string, std::string> names_;
  std::unordered_set<std::string> settled_;  // the names before, of inputs and outputs
  std::vector<std::pair<std::string, DimExpr>> sizes_, fixed_;
};

// The graph keeps inputs that its nodes do not read, such as weights that a pass has replaced.
void drop_unread(OnnxGraph& graph) {
  std::unordered_set<std::string> read;
  for (const OnnxNode& node : graph.nodes) read.insert(node.inputs.begin(), node.inputs.end());
  std::erase_if(graph.inputs, [&](const OnnxValue& input) { return !read.count(input.name); });
  std::erase_if(graph.initializers,
                [&](const OnnxInitializer& weight) { return !read.count(weight.name); });
}

// The inputs in the user's order; those that the model does not read are inputs, too.
void order_inputs(OnnxGraph& graph, const SavedModel& model) {
  std::vector<OnnxValue> ordered;
  for (const SavedInput& input : model.inputs) {
    const auto known = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                    [&](const OnnxValue& v) { return v.name == input.name; });
    if (known != graph.inputs.end()) {
      ordered.push_back(*known);
      continue;
    }
    OnnxValue& unread = ordered.emplace_back();
    unread.name = input.name;
    unread.type.kind = OnnxType::Kind::Tensor;
    unread.type.dtype = input.dtype;
    unread.type.dims.emplace();
    for (size_t d = 0; d < input.sizes.size(); ++d) {
      const auto name = input.any_sizes.find(static_cast<int64_t>(d));
      unread.type.dims->push_back(name == input.any_sizes.end() ? OnnxDim(input.sizes[d])
                                                                : OnnxDim(name->second));
    }
  }
  for (const OnnxValue& value : graph.inputs)
    ORTM_CHECK(std::any_of(ordered.begin(), ordered.end(),
                           [&](const OnnxValue& v) { return v.name == value.name; }),
               "[save_onnx] the model must read its arguments, parameters and buffers only, but "
               "found '",
               value.name, "'");
  graph.inputs = std::move(ordered);
}

}  // namespace

void save_model(const Graph& graph, const std::string& path, const SavedModel& model) {
  for (const auto& node : graph.nodes())
    ORTM_CHECK(node->op != "ATen", "[save_onnx] every operator must have an ONNX form, but found ",
               node->attrs.string("operator", "a call of torch"), " (", node->origin.source, ")");
  OnnxModel file = lower_to_onnx(graph, model.data);
  drop_unread(file.graph);
  Renaming renaming(graph, model);
  ORTM_CHECK(file.graph.outputs.size() == model.outputs.size(), "[save_onnx] there must be ",
             file.graph.outputs.size(), " output names, but found ", model.outputs.size());
  for (size_t i = 0; i < model.outputs.size(); ++i)
    renaming.name_output(file.graph.outputs[i].name, model.outputs[i]);
  renaming.separate(file.graph);
  renaming.apply(file.graph);
  order_inputs(file.graph, model);
  file.metadata.clear();
  write_onnx_file(file, path, model.data.placement);
}

}  // namespace ortmodule
