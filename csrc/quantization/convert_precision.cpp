#include "quantization/convert_precision.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "quantization/half_tensor.h"
#include "quantization/precision_converter.h"

namespace ortmodule {
namespace {

constexpr int64_t kFreeInitializersIr = 4;  // initializers that are no inputs
constexpr int64_t kBFloat16Opset = 13;      // Cast of bfloat16
constexpr size_t kFewElements = 256;        // a Cast costs more than they save

// Weights of 16 bits behind the names that they had.
class WeightNarrower {
 public:
  WeightNarrower(PrecisionState& state, const OnnxGraph& main) : state_(state), main_(main) {}

  void run(OnnxGraph& graph) {
    std::vector<OnnxNode> casts;
    const std::vector<OnnxInitializer> initializers = std::move(graph.initializers);
    graph.initializers.clear();
    std::set<std::string> narrowed;  // of this graph: others may have inputs of these names
    for (const OnnxInitializer& initializer : initializers)
      if (!is_fed(graph, initializer.name) &&
          narrow(graph, initializer.name, initializer.tensor, "", casts))
        narrowed.insert(initializer.name);
      else
        graph.initializers.push_back(initializer);
    std::vector<OnnxNode> nodes;
    for (OnnxNode& node : graph.nodes) {
      change_subgraphs(node, [&](OnnxGraph& inner, const std::string&) { run(inner); });
      const OnnxAttr* value = node.op == "Constant" ? find_attr(node, "value") : nullptr;
      const auto* tensor = value ? std::get_if<OnnxTensor>(value) : nullptr;
      if (tensor && narrow(graph, node.outputs.at(0), *tensor, node.op, casts)) continue;
      nodes.push_back(std::move(node));
    }
    graph.nodes = std::move(casts);
    std::move(nodes.begin(), nodes.end(), std::back_inserter(graph.nodes));
    std::erase_if(graph.inputs,
                  [&](const OnnxValue& input) { return narrowed.count(input.name) > 0; });
  }

 private:
  bool is_fed(const OnnxGraph& graph, const std::string& name) const {
    return &graph == &main_ && state_.fed.count(name) > 0;
  }

  bool narrow(OnnxGraph& graph, const std::string& name, const OnnxTensor& tensor,
              const std::string& origin, std::vector<OnnxNode>& casts) {
    const auto found = tensor.dtype == DType::Float32 ? weight_of(tensor) : nullptr;
    if (!found || found->elements() < kFewElements) return false;
    ConstantWeight weight = *found;
    weight.origin = origin;
    const DType type = state_.options.type;
    NodeReport report{name, "weight", name};
    const HalfFit fit = fit_in_half(weight, type);
    if (!fit.in_range) report.note = str("it is beyond the range of ", torch_name_of(type));
    if (!fit.few_become_zero) report.note = str("it would become zero in ", torch_name_of(type));
    report.quantized = report.note.empty();
    if (report.quantized) {
      auto facts = std::make_shared<WeightReport>();
      facts->name = name;
      report.weights.push_back(facts);
      const std::string narrow_name = state_.names.fresh(str(name, "_", torch_name_of(type)));
      graph.initializers.push_back(
          {narrow_name,
           half_tensor(std::make_shared<const ConstantWeight>(std::move(weight)), type, facts)});
      casts.push_back(make_node("Cast", {narrow_name}, {name}, narrow_name + "_Cast",
                                {{"to", int64_t{onnx_number(DType::Float32)}}}));
    }
    state_.report.nodes.push_back(report);
    return report.quantized;
  }

  PrecisionState& state_;
  const OnnxGraph& main_;
};

// Their type is what callers feed, so they stay as they are.
std::set<std::string> find_fed(const OnnxModel& model, QuantizationReport& report) {
  std::set<std::string> fed;
  if (model.ir_version < kFreeInitializersIr) return fed;  // every initializer was an input
  for (const OnnxInitializer& initializer : model.graph.initializers) {
    const std::string& name = initializer.name;
    if (std::ranges::find(model.graph.inputs, name, &OnnxValue::name) == model.graph.inputs.end() ||
        initializer.tensor.dtype != DType::Float32)
      continue;
    fed.insert(name);
    NodeReport kept{name, "weight", name};
    kept.note = "it is an input, too, which calls may feed: take it out of the model's inputs";
    report.nodes.push_back(std::move(kept));
  }
  return fed;
}

}  // namespace

std::vector<std::string> computed_floats(const OnnxModel& model) {
  const ValueTypes types(model.graph, nullptr);
  std::vector<std::string> names;
  for (const OnnxNode& node : model.graph.nodes)
    for (const std::string& output : node.outputs)
      if (node.op != "Constant" && !output.empty() && types.is_float(output))
        names.push_back(output);
  return names;
}

QuantizationReport convert_precision(OnnxModel& model, const PrecisionConversion& options) {
  if (options.type != DType::Float16 && options.type != DType::BFloat16)
    throw Error(str("[precision] the type must be float16 or bfloat16, but found ",
                    torch_name_of(options.type)));
  if (options.type == DType::BFloat16 && standard_opset(model) < kBFloat16Opset)
    throw Error(str("[precision] bfloat16 needs operator set ", kBFloat16Opset, ", but found ",
                    standard_opset(model), ": use float16"));
  PrecisionState state{options, TakenNames(model), {}};
  state.fed = find_fed(model, state.report);
  if (options.weights_only || options.type == DType::BFloat16)
    WeightNarrower(state, model.graph).run(model.graph);
  else
    PrecisionConverter(state, model.graph, nullptr).run();
  remove_unread(model, state.origins);
  model.ir_version = std::max(model.ir_version, kFreeInitializersIr);
  return std::move(state.report);
}

}  // namespace ortmodule
