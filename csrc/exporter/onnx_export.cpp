#include "exporter/onnx_export.h"

#include <unordered_set>

#include "base/error.h"
#include "ir/text.h"
#include "onnx/onnx_file.h"
#include "onnx/onnx_reader.h"
#include "onnx/onnx_rule.h"
#include "ops/emit.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

constexpr const char* kGraphKey = "ortmodule.graph";
constexpr const char* kNodeKey = "ortmodule.node";
constexpr const char* kModuleKey = "ortmodule.module";
constexpr const char* kSourceKey = "ortmodule.source";

// A copy with unique names, which the text notation and ONNX require.
std::unique_ptr<Graph> with_unique_names(const Graph& graph) {
  std::unique_ptr<Graph> copy = parse_graph(print(graph));
  auto from = graph.nodes().begin();
  for (const auto& node : copy->nodes()) node->origin = (*from++)->origin;
  return copy;
}

class Lowering {
 public:
  Lowering(const Graph& graph, const OnnxSaveOptions& options) : graph_(graph), options_(options) {}

  OnnxModel run() {
    onnx().name = graph_.name;
    model().metadata.emplace_back(kGraphKey, signature_text(graph_));
    for (const Value* value : graph_.values()) {
      if (value->is_literal()) continue;
      builder_.reserve(value->name);
      names_[value] = value->name;
    }
    for (const GraphInput& input : graph_.inputs()) add_input(*input.value);
    for (const auto& node : graph_.nodes()) add_node(*node);
    for (const GraphOutput& output : graph_.outputs())
      if (output.value) add_output(*output.value);
    add_types();
    return std::move(model());
  }

 private:
  OnnxModel& model() { return builder_.model(); }
  OnnxGraph& onnx() { return builder_.graph(); }

  void add_input(const Value& value) {
    builder_.provide_dims(value.name, value.dims);
    auto data = options_.initializers.find(value.name);
    if (data == options_.initializers.end()) {
      onnx().inputs.push_back(onnx_value(value.name, value.dtype, value.dims));
      return;
    }
    const auto [pointer, bytes] = data->second;
    OnnxInitializer initializer{value.name,
                                {value.dtype, {}, SharedBytes::borrowed(pointer, bytes)}};
    for (const DimExpr& dim : value.dims) {
      ORTM_CHECK(dim.is_constant(), "[onnx] an initializer must have constant sizes, but found ",
                 value.name, ": ", type_text(value));
      initializer.tensor.dims.push_back(dim.value());
    }
    const int bits = packed_bits(value.dtype);
    const auto count = static_cast<size_t>(product(value.dims).value());
    const size_t expected =
        bits < 8 ? (count * static_cast<size_t>(bits) + 7) / 8 : count * size_of(value.dtype);
    ORTM_CHECK(bytes == expected, "[onnx] data of ", value.name, " must have ", expected,
               " bytes, but found ", bytes);
    onnx().initializers.push_back(std::move(initializer));
  }

  void add_node(const Node& node) {
    builder_.set_scope(node.outputs().empty() ? node.op : node.output()->name);
    const size_t before = onnx().nodes.size();
    lower(node);
    ORTM_ASSERT(onnx().nodes.size() > before, "op ", node.op, " was not exported to any ONNX node");
    OnnxMetadata& metadata = onnx().nodes.back().metadata;
    metadata.emplace_back(kNodeKey, print(node));
    if (!node.origin.module.empty()) metadata.emplace_back(kModuleKey, node.origin.module);
    if (!node.origin.source.empty()) metadata.emplace_back(kSourceKey, node.origin.source);
    for (size_t i = before; i < onnx().nodes.size(); ++i)
      for (const std::string& name : onnx().nodes[i].outputs) produced_.insert(name);
    for (const Value* output : node.outputs())
      if (produced_.count(output->name) > 0) builder_.provide_dims(output->name, output->dims);
  }

  void lower(const Node& node) {
    static const OnnxRule kNone;
    const OpDef* def = find_op(node.op);
    const OnnxRuleContext context(builder_, node, def ? def->onnx : kNone, names_);
    if (def && def->onnx.write)
      def->onnx.write(context);
    else if (def && has_body(*def))
      lower_body(node);
    else
      export_custom(context, def && !def->domain.empty() ? def->domain : "com.microsoft");
  }

  // Exports the nodes of the body instead of the node. Its results take the names of the outputs.
  void lower_body(const Node& node) {
    bodies_.push_back(instantiate_body(node));  // kept: names_ points at its values
    const Graph& body = *bodies_.back();
    for (size_t i = 0; i < body.inputs().size(); ++i)
      if (const Value* operand = node.input(i))
        names_[body.inputs()[i].value] = onnx_tensor(builder_, operand, names_);
    for (const auto& inner : body.nodes())
      for (const Value* output : inner->outputs())
        names_[output] = builder_.fresh_name(node.output()->name + "/" + output->name);
    std::vector<std::pair<const Value*, std::string>> further;
    std::unordered_set<const Value*> named;
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      const Value* result = body.outputs().at(i).value;
      if (result->producer() && named.insert(result).second)
        names_[result] = names_.at(node.output(i));
      else
        further.emplace_back(result, names_.at(node.output(i)));
    }
    for (const auto& inner : body.nodes()) lower(*inner);
    for (const auto& [value, name] : further)
      builder_.add("Identity", {onnx_tensor(builder_, value, names_)}, {}, {name});
  }

  // An ONNX graph output must be computed by a node and be listed once; others need an Identity.
  void add_output(const Value& value) {
    std::string name = value.is_literal() ? "" : value.name;
    if (!value.producer() || !outputs_.insert(name).second) {
      builder_.set_scope("output");
      const std::string source = onnx_tensor(builder_, &value, names_);
      name = builder_.fresh_name((value.is_literal() ? "literal" : value.name) + "/output");
      builder_.add("Identity", {source}, {}, {name});
      outputs_.insert(name);
    }
    onnx().outputs.push_back(onnx_value(name, value.dtype, value.dims));
  }

  void add_types() {
    for (const auto& node : graph_.nodes())
      for (const Value* value : node->outputs())
        if (produced_.count(value->name) > 0 && outputs_.count(value->name) == 0)
          onnx().values.push_back(onnx_value(value->name, value->dtype, value->dims));
  }

  const Graph& graph_;
  const OnnxSaveOptions& options_;
  OnnxBuilder builder_;
  std::unordered_map<const Value*, std::string> names_;
  std::vector<std::unique_ptr<Graph>> bodies_;
  std::unordered_set<std::string> produced_;
  std::unordered_set<std::string> outputs_;
};

const std::string* find_metadata(const OnnxMetadata& metadata, std::string_view key) {
  for (const auto& [name, value] : metadata)
    if (name == key) return &value;
  return nullptr;
}

}  // namespace

OnnxModel lower_to_onnx(const Graph& graph, const OnnxSaveOptions& options) {
  const std::unique_ptr<Graph> named = with_unique_names(graph);
  return Lowering(*named, options).run();
}

void save_onnx(const Graph& graph, const std::string& path, const OnnxSaveOptions& options) {
  write_onnx_file(lower_to_onnx(graph, options), path, options.placement);
}

std::unique_ptr<Graph> load_onnx(const std::string& path) {
  const OnnxModel model = read_onnx_model(path);
  const std::string* signature = find_metadata(model.metadata, kGraphKey);
  ORTM_CHECK(signature, "[onnx] ", path,
             " must be written by ortmodule_py, but found no graph text in its metadata");
  ORTM_CHECK(model.intact, "[onnx] ", path,
             " must be unchanged since ortmodule_py wrote it, but found that its graph was edited");
  std::string text = *signature + " {\n";
  std::vector<Origin> origins;
  for (const OnnxNode& node : model.graph.nodes) {
    const std::string* line = find_metadata(node.metadata, kNodeKey);
    if (!line) continue;
    text += *line + "\n";
    const std::string* module = find_metadata(node.metadata, kModuleKey);
    const std::string* source = find_metadata(node.metadata, kSourceKey);
    origins.push_back({module ? *module : "", source ? *source : ""});
  }
  std::unique_ptr<Graph> graph = parse_graph(text + "}");
  auto origin = origins.begin();
  for (const auto& node : graph->nodes()) node->origin = *origin++;
  return graph;
}

}  // namespace ortmodule
