#include "importer/check_declarations.h"

#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <variant>

#include "base/error.h"
#include "importer/importer.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

constexpr int64_t kLastIrVersion = 14;
constexpr std::pair<std::string_view, int64_t> kLastOpsets[] = {
    {"", 28}, {"ai.onnx.ml", 5}, {"com.microsoft", 1}, {"com.microsoft.nchwc", 1}};

// Versions without a promise of what they mean are refused, not guessed.
void check_versions(const OnnxModel& model) {
  ORTM_CHECK(model.ir_version <= kLastIrVersion, "[model] ir_version must be at most ",
             kLastIrVersion, ", but found ", model.ir_version);
  ORTM_CHECK(!model.opsets.empty(), "[model] a file must name its operator sets (opset_import)");
  for (const OnnxOpset& opset : model.opsets)
    for (const auto& [domain, last] : kLastOpsets)
      ORTM_CHECK(opset.domain != domain || (opset.version >= 1 && opset.version <= last),
                 "[model] the operator set of '", domain.empty() ? "ai.onnx" : domain,
                 "' must be from 1 to ", last, ", but found ", opset.version);
}

bool fits(const OnnxTensor& tensor, const OnnxType& type) {
  if (type.kind == OnnxType::Kind::Unknown || type.element_type == 0) return true;
  if (type.kind != OnnxType::Kind::Tensor) return false;
  const int kind = tensor.element_type != 0 ? tensor.element_type : onnx_number(tensor.dtype);
  if (kind != type.element_type) return false;
  if (!type.dims) return true;
  if (type.dims->size() != tensor.dims.size()) return false;
  for (size_t d = 0; d < tensor.dims.size(); ++d)
    if (const auto* size = std::get_if<int64_t>(&(*type.dims)[d]);
        size && *size >= 0 && *size != tensor.dims[d])
      return false;
  return true;
}

void check_inputs(const OnnxModel& model) {
  const OnnxGraph& graph = model.graph;
  std::unordered_map<std::string_view, const OnnxType*> types;
  for (const OnnxValue& input : graph.inputs)
    ORTM_CHECK(types.emplace(input.name, &input.type).second,
               "[model] each input must have a name of its own, but found another '", input.name,
               "'");
  for (const OnnxValue* input : called_inputs(graph))
    ORTM_CHECK(input->name.empty() || input->type.kind != OnnxType::Kind::Unknown,
               "[model] an input must have a type, but '", input->name, "' has none");
  for (const OnnxInitializer& initializer : graph.initializers) {
    const auto input = types.find(initializer.name);
    ORTM_CHECK(input == types.end() || fits(initializer.tensor, *input->second),
               "[model] an initializer must have the type and sizes of its input, but '",
               initializer.name, "' has others");
  }
}

const OnnxGraph* branch_of(const OnnxNode& node, std::string_view name) {
  for (const auto& [key, value] : node.attrs)
    if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value);
        graph && key == name)
      return graph->get();
  return nullptr;
}

void check_branches(const OnnxNode& node) {
  const OnnxGraph* branches[] = {branch_of(node, "then_branch"), branch_of(node, "else_branch")};
  if (!branches[0] || !branches[1]) return;  // the import says so
  for (const OnnxGraph* branch : branches)
    ORTM_CHECK(branch->inputs.empty(), "[model] branches of ", node_title(node),
               " must have no inputs, but found ", branch->inputs.size());
  const auto &taken = branches[0]->outputs, &other = branches[1]->outputs;
  ORTM_CHECK(taken.size() == other.size(), "[model] branches of ", node_title(node),
             " must have as many outputs, but found ", taken.size(), " and ", other.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    const OnnxType &a = taken[i].type, &b = other[i].type;
    ORTM_CHECK(a.kind != OnnxType::Kind::Tensor || b.kind != OnnxType::Kind::Tensor ||
                   a.element_type == 0 || b.element_type == 0 || a.element_type == b.element_type,
               "[model] output ", i, " of the branches of ", node_title(node),
               " must have one type, but found ", onnx_type_name(a.element_type), " and ",
               onnx_type_name(b.element_type));
  }
}

using FunctionName = std::tuple<std::string_view, std::string_view, std::string_view>;

void check_nodes(const std::vector<OnnxNode>& nodes, int depth) {
  if (depth > kMostDepth) return;
  for (const OnnxNode& node : nodes) {
    if (node.domain.empty() && node.op == "If") check_branches(node);
    for (const auto& [key, value] : node.attrs)
      if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value);
          graph && *graph)
        check_nodes((*graph)->nodes, depth + 1);
  }
}

}  // namespace

int64_t last_opset(std::string_view domain) {
  for (const auto& [name, last] : kLastOpsets)
    if (name == domain) return last;
  return 1;
}

void check_declarations(const OnnxModel& model) {
  check_versions(model);
  check_inputs(model);
  check_nodes(model.graph.nodes, 0);
  std::set<FunctionName> functions;
  for (const OnnxFunction& function : model.functions) {
    ORTM_CHECK(functions.insert({function.domain, function.name, function.overload}).second,
               "[model] each function must have a name of its own, but found another '",
               function.name, "'");
    check_nodes(function.nodes, 0);
  }
}

}  // namespace ortmodule
