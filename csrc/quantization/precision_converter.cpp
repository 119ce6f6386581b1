#include "quantization/precision_converter.h"

#include <utility>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "quantization/half_tensor.h"
#include "quantization/precision_rules.h"

namespace ortmodule {
namespace {

void set_half(OnnxType& type) {
  type.dtype = DType::Float16;
  type.element_type = onnx_number(DType::Float16);
}

OnnxNode cast_node(const std::string& from, const std::string& to, DType dtype) {
  return make_node("Cast", {from}, {to}, to + "_Cast", {{"to", int64_t{onnx_number(dtype)}}});
}

}  // namespace

PrecisionConverter::PrecisionConverter(PrecisionState& state, OnnxGraph& graph,
                                       PrecisionConverter* parent)
    : state_(state),
      options_(state.options),
      graph_(graph),
      parent_(parent),
      types_(graph, parent ? &parent->types_ : nullptr),
      nodes_(std::move(graph.nodes)) {
  graph_.nodes.clear();
  const std::vector<OnnxInitializer> initializers = graph_.initializers;
  for (const OnnxInitializer& initializer : initializers)
    if (parent || state_.fed.count(initializer.name) == 0)
      add_weight(initializer.name, initializer.tensor, "");
  const bool changes_io = !parent && !options_.keep_io_types;
  for (OnnxValue& input : graph_.inputs) {
    if (!types_.is_float(input.name) || values_.count(input.name) > 0) continue;
    if (changes_io && state_.fed.count(input.name) == 0) {
      half_io_.insert(input.name);
      set_half(input.type);
      values_[input.name].half = input.name;
    } else {
      values_[input.name].full = input.name;
    }
  }
  if (!changes_io) return;
  for (const OnnxValue& output : graph_.outputs)
    if (types_.is_float(output.name)) half_io_.insert(output.name);
}

void PrecisionConverter::run() {
  for (const OnnxNode& node : nodes_) process(node);
  finish_outputs();
  graph_.nodes = std::move(made_);
  std::erase_if(graph_.values, [&](const OnnxValue& value) {
    const auto found = values_.find(value.name);
    return found != values_.end() && found->second.full != value.name;
  });
}

void PrecisionConverter::add_weight(const std::string& name, const OnnxTensor& tensor,
                                    const std::string& origin) {
  if (tensor.dtype != DType::Float32) return;
  Variants& value = values_[name];
  value.full = name;
  const WeightPtr weight = weight_of(tensor);
  if (!weight) return;
  ConstantWeight with_origin = *weight;
  with_origin.origin = origin;
  value.weight = std::make_shared<const ConstantWeight>(std::move(with_origin));
}

// ---- values ------------------------------------------------------------------------------------

PrecisionConverter* PrecisionConverter::owner_of(const std::string& name) {
  for (PrecisionConverter* graph = this; graph; graph = graph->parent_)
    if (graph->values_.count(name) > 0) return graph;
  return nullptr;
}

PrecisionConverter::Variants* PrecisionConverter::find(const std::string& name) {
  PrecisionConverter* owner = name.empty() ? nullptr : owner_of(name);
  return owner ? &owner->values_.at(name) : nullptr;
}

std::string PrecisionConverter::full(const std::string& name) {
  PrecisionConverter* owner = owner_of(name);
  Variants& value = owner->values_.at(name);
  if (!value.full.empty()) return value.full;
  value.full = owner->keeps_name(name) ? state_.names.fresh(name + "_float32") : name;
  owner->made_.push_back(cast_node(value.half, value.full, DType::Float32));
  return value.full;
}

std::string PrecisionConverter::half(const std::string& name, NodeReport& report) {
  PrecisionConverter* owner = owner_of(name);
  Variants& value = owner->values_.at(name);
  if (!value.half.empty()) return value.half;
  if (value.weight) return owner->half_weight(name, value, report);
  value.half = owner->keeps_name(name) ? name : state_.names.fresh(name + "_float16");
  owner->made_.push_back(cast_node(value.full, value.half, DType::Float16));
  return value.half;
}

std::string PrecisionConverter::half_weight(const std::string& name, Variants& value,
                                            NodeReport& report) {
  value.facts = std::make_shared<WeightReport>();
  value.facts->name = name;
  value.half = state_.names.fresh(name + "_float16");
  graph_.initializers.push_back(
      {value.half, half_tensor(value.weight, DType::Float16, value.facts)});
  report.weights.push_back(value.facts);
  if (!value.weight->origin.empty()) state_.origins.insert(name);
  return value.half;
}

/// Whether float16 has the name of an input or output of the model.
bool PrecisionConverter::keeps_name(const std::string& name) const {
  return half_io_.count(name) > 0;
}

// ---- nodes -------------------------------------------------------------------------------------

bool PrecisionConverter::has_floats(const OnnxNode& node) const {
  for (const std::string& input : node.inputs)
    if (!input.empty() && types_.is_float(input)) return true;
  for (const std::string& output : node.outputs)
    if (!output.empty() && types_.is_float(output)) return true;
  return false;
}

// Whether what a node moves is there in float32 only.
bool PrecisionConverter::moves_full(const OnnxNode& node) {
  bool weights_only = true;
  for (const std::string& input : node.inputs) {
    const Variants* value = find(input);
    if (!value || value->weight) continue;
    weights_only = false;
    if (!value->half.empty()) return value->is_wide;
  }
  return !weights_only;
}

std::string PrecisionConverter::reason_to_keep(const OnnxNode& node) {
  const HalfRule rule = half_rule(node);
  if (options_.op_types_to_keep.count(node.op) > 0 || options_.nodes_to_keep.count(node.name) > 0)
    return "asked for";
  if (rule == HalfRule::Unknown) return "it has no form in float16 here";
  for (const std::string& output : node.outputs)
    if (options_.wide_values.count(output) > 0)
      return "its values are beyond float16's range on the samples";
  bool wide = false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const std::string& input = node.inputs[i];
    const Variants* value = find(input);
    if (!input.empty() && !value && types_.of(input) == 0)
      return str("the type of '", input, "' is not known");
    if (!value || has_own_type(node, i)) continue;
    wide = wide || value->is_wide;
    if (!value->weight || !value->half.empty()) continue;
    const HalfFit fit = fit_in_half(*value->weight, DType::Float16);
    if (!fit.in_range) return str("'", input, "' is beyond float16's range");
    if (!fit.few_become_zero) return str("'", input, "' would become zero in float16");
  }
  if (rule == HalfRule::Multiplies) return "";
  if (wide) return "its operands may be beyond float16's range";
  return leaves_range(node) ? "its values may be beyond float16's range" : "";
}

void PrecisionConverter::process(OnnxNode node) {
  change_subgraphs(node, [&](OnnxGraph& inner, const std::string&) {
    PrecisionConverter(state_, inner, this).run();
  });
  NodeReport report{node.name, node.op, node.outputs.empty() ? "" : node.outputs[0]};
  if (node.op == "Constant" && node.domain.empty()) {
    const OnnxAttr* value = find_attr(node, "value");
    if (const auto* tensor = value ? std::get_if<OnnxTensor>(value) : nullptr)
      add_weight(node.outputs.at(0), *tensor, node.op);
    made_.push_back(std::move(node));
    return;
  }
  const HalfRule rule = half_rule(node);
  const bool silent = rule == HalfRule::Silent || !has_floats(node) ||
                      (rule == HalfRule::Moves && moves_full(node));
  if (!silent) report.note = reason_to_keep(node);
  report.quantized = !silent && report.note.empty();
  report.quantized ? emit_half(std::move(node), report) : emit_full(std::move(node), report);
  if (!silent) state_.report.nodes.push_back(std::move(report));
}

void PrecisionConverter::emit_half(OnnxNode node, NodeReport& report) {
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (find(node.inputs[i]))
      node.inputs[i] = has_own_type(node, i) ? full(node.inputs[i]) : half(node.inputs[i], report);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    std::string& output = node.outputs[i];
    if (output.empty() || !types_.is_float(output)) continue;
    Variants& value = values_[output];
    if (has_own_result_type(node, i)) {
      value.full = keeps_name(output) ? state_.names.fresh(output + "_float32") : output;
      output = value.full;
    } else {
      value.half = keeps_name(output) ? output : state_.names.fresh(output + "_float16");
      output = value.half;
    }
  }
  made_.push_back(std::move(node));
}

void PrecisionConverter::emit_full(OnnxNode node, NodeReport& report) {
  bool wide = leaves_range(node);
  for (std::string& input : node.inputs) {
    const Variants* value = find(input);
    if (!value) continue;
    wide = wide || value->is_wide;
    input = full(input);
  }
  // Behind a constant that float16 does not hold, too.
  const HalfRule rule = half_rule(node);
  wide = wide || (!report.note.empty() && rule != HalfRule::Unknown && report.note != "asked for");
  wide = wide && !returns_to_range(node) && rule != HalfRule::Silent && rule != HalfRule::Unknown &&
         rule != HalfRule::Multiplies;
  for (std::string& output : node.outputs) {
    if (output.empty() || !types_.is_float(output)) continue;
    Variants& value = values_[output];
    value.is_wide = wide || options_.wide_values.count(output) > 0;
    value.full = keeps_name(output) ? state_.names.fresh(output + "_float32") : output;
    output = value.full;
  }
  made_.push_back(std::move(node));
}

void PrecisionConverter::finish_outputs() {
  NodeReport none;
  for (OnnxValue& output : graph_.outputs) {
    if (!find(output.name)) continue;
    if (!keeps_name(output.name)) {
      full(output.name);
      continue;
    }
    set_half(output.type);
    const std::string made = half(output.name, none);
    if (made != output.name)  // a constant
      made_.push_back(make_node("Identity", {made}, {output.name}));
  }
}

}  // namespace ortmodule
