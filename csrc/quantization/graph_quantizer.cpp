#include "quantization/graph_quantizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ortmodule {
namespace {

constexpr int64_t kFloat = 1, kFloat16 = 10;
constexpr int64_t kAxisOpset = 13;

// The axes of Transpose's result; nothing if they are no permutation.
std::optional<std::vector<size_t>> permutation_of(const OnnxNode& node, size_t rank) {
  std::vector<size_t> order;
  const OnnxAttr* attr = find_attr(node, "perm");
  const auto* given = attr ? std::get_if<std::vector<int64_t>>(attr) : nullptr;
  for (size_t i = 0; i < rank; ++i)
    order.push_back(given && i < given->size() ? static_cast<size_t>((*given)[i]) : rank - 1 - i);
  std::vector<size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < rank; ++i)
    if (sorted[i] != i) return std::nullopt;
  if (given && given->size() != rank) return std::nullopt;
  return order;
}

GraphQuantizer::WeightPtr with_origin(ConstantWeight weight, const std::string& op) {
  weight.origin = op + (weight.origin.empty() ? "" : " of " + weight.origin);
  return std::make_shared<const ConstantWeight>(std::move(weight));
}

}  // namespace

GraphQuantizer::GraphQuantizer(QuantizationState& state, OnnxGraph& graph, GraphQuantizer* parent)
    : state_(state),
      options_(state.options),
      graph_(graph),
      parent_(parent),
      types_(graph, parent ? &parent->types_ : nullptr),
      nodes_(std::move(graph.nodes)) {
  graph_.nodes.clear();
  for (size_t i = 0; i < graph_.initializers.size(); ++i)
    initializers_.emplace(graph_.initializers[i].name, i);
  for (size_t i = 0; i < nodes_.size(); ++i)
    for (const std::string& output : nodes_[i].outputs) producers_.emplace(output, i);
  for (const OnnxValue& input : graph_.inputs)
    if (initializers_.count(input.name) == 0) available_.insert(input.name);
}

void GraphQuantizer::run() {
  for (const OnnxNode& node : nodes_) process(node);
  for (const OnnxValue& output : graph_.outputs) keep(output.name);
  graph_.nodes = std::move(first_);
  for (OnnxNode& node : made_) graph_.nodes.push_back(std::move(node));
}

// ---- values ------------------------------------------------------------------------------------

GraphQuantizer* GraphQuantizer::owner_of(const std::string& name) {
  for (GraphQuantizer* graph = this; graph; graph = graph->parent_)
    if (graph->initializers_.count(name) > 0 || graph->producers_.count(name) > 0 ||
        graph->available_.count(name) > 0 || graph->transposed_.count(name) > 0)
      return graph;
  return nullptr;
}

GraphQuantizer::WeightPtr GraphQuantizer::find_weight(const std::string& name) {
  GraphQuantizer* owner = name.empty() ? nullptr : owner_of(name);
  if (!owner) return nullptr;
  if (owner != this) return owner->find_weight(name);
  const auto transposed = transposed_.find(name);
  if (transposed != transposed_.end()) return transposed->second;
  const auto initializer = initializers_.find(name);
  WeightPtr weight;
  if (initializer != initializers_.end()) {
    weight = weight_of(graph_.initializers[initializer->second].tensor);
  } else {
    const auto producer = producers_.find(name);
    if (producer != producers_.end()) weight = weight_of_node(nodes_[producer->second]);
  }
  const bool usable =
      weight && (weight->dtype == DType::Float32 || weight->dtype == DType::Float16);
  return usable ? weight : nullptr;
}

// A value that a node makes of constants alone.
GraphQuantizer::WeightPtr GraphQuantizer::weight_of_node(const OnnxNode& node) {
  if (!node.domain.empty() || node.outputs.size() != 1) return nullptr;
  if (node.op == "Constant") {
    const OnnxAttr* value = find_attr(node, "value");
    const auto* tensor = value ? std::get_if<OnnxTensor>(value) : nullptr;
    const WeightPtr weight = tensor ? weight_of(*tensor) : nullptr;
    return weight ? with_origin(*weight, node.op) : nullptr;
  }
  if (node.op != "Identity" && node.op != "Transpose" && node.op != "Cast") return nullptr;
  const WeightPtr from = node.inputs.size() == 1 ? find_weight(node.inputs[0]) : nullptr;
  if (node.op == "Cast") {  // bfloat16 and float64 are weights once they are cast
    const int64_t to = integer_attr(node, "to", 0);
    GraphQuantizer* owner = node.inputs.size() == 1 ? owner_of(node.inputs[0]) : nullptr;
    WeightPtr stored = from;
    if (!stored && owner && owner->initializers_.count(node.inputs[0]) > 0)
      stored =
          weight_of(owner->graph_.initializers[owner->initializers_.at(node.inputs[0])].tensor);
    if (!stored || (to != kFloat && !(to == kFloat16 && stored->dtype == DType::Float16)))
      return nullptr;
    ConstantWeight weight = *stored;
    weight.dtype = to == kFloat ? DType::Float32 : DType::Float16;
    return with_origin(std::move(weight), node.op);
  }
  if (!from) return nullptr;
  if (node.op == "Identity") return with_origin(*from, node.op);
  const auto order = permutation_of(node, from->rank());
  return order ? with_origin(from->permuted(*order), node.op) : nullptr;
}

// The nodes that made a weight may have no reader left.
void GraphQuantizer::add_origins(const std::string& name) {
  GraphQuantizer* owner = owner_of(name);
  if (!owner) return;
  const auto producer = owner->producers_.find(name);
  if (producer == owner->producers_.end()) return;
  state_.origins.insert(name);
  for (const std::string& input : owner->nodes_[producer->second].inputs) owner->add_origins(input);
}

const QuantizedValue* GraphQuantizer::find_known(const std::string& name) {
  for (GraphQuantizer* graph = this; graph; graph = graph->parent_) {
    const auto found = graph->known_.find(name);
    if (found != graph->known_.end()) return &found->second;
  }
  return nullptr;
}

std::optional<QuantizedValue> GraphQuantizer::activation(const std::string& name,
                                                         NodeReport& report) {
  if (name.empty()) return QuantizedValue();
  GraphQuantizer* owner = owner_of(name);
  if (!owner)
    throw Error(str("[quantization] a value must be in the graph, but found '", name, "'"));
  if (owner != this) return owner->activation(name, report);
  const auto found = known_.find(name);
  if (found != known_.end()) {
    if (found->second.axis < 0) return found->second;
    report.note = str("'", name, "' has a scale for each channel already");
    return std::nullopt;
  }
  if (initializers_.count(name) > 0) {
    const bool as_weight = options_.weight_type == QuantizedType::UInt8;
    RangeRule rule{QuantizedType::UInt8};
    rule.symmetric =
        as_weight ? options_.weight_symmetric.value_or(false) : options_.activation_symmetric;
    rule.least_range = options_.least_range;
    return weight(name, -1, rule, report);
  }
  return dynamic_value(name);
}

QuantizedValue GraphQuantizer::dynamic_value(const std::string& name) {
  const QuantizedValue value{fresh(name + "_quantized"), fresh(name + "_scale"),
                             fresh(name + "_zero_point")};
  emit(make_node("DynamicQuantizeLinear", {name}, {value.data, value.scale, value.zero_point},
                 name + "_QuantizeLinear"));
  known_.emplace(name, value);
  return value;
}

std::optional<QuantizedValue> GraphQuantizer::weight(const std::string& name, int axis,
                                                     const RangeRule& rule, NodeReport& report) {
  GraphQuantizer* owner = owner_of(name);
  if (owner && owner != this) return owner->weight(name, axis, rule, report);
  const auto found = known_.find(name);
  if (found != known_.end()) return found->second;
  const WeightPtr weight = find_weight(name);
  if (!weight) {
    report.note = str("'", name, "' is no constant of float32");
    return std::nullopt;
  }
  const auto how = quantize_weight(*weight, channels_of(*weight, axis), rule);
  if (!how) {
    report.note = str("'", name, "' holds NaN or infinity");
    return std::nullopt;
  }
  QuantizedValue value{fresh(name + "_quantized"), fresh(name + "_scale"),
                       fresh(name + "_zero_point"), axis, true};
  const std::vector<int64_t> sizes =
      axis < 0 ? std::vector<int64_t>{}
               : std::vector<int64_t>{static_cast<int64_t>(how->scales.size())};
  add_initializer(value.scale, scale_tensor(*how, weight->dtype, sizes));
  add_initializer(value.zero_point, zero_point_tensor(*how, sizes));
  auto facts = std::make_shared<WeightReport>();
  facts->name = name;
  report.weights.push_back(facts);
  add_initializer(value.data, quantized_tensor(weight, *how, facts));
  add_origins(name);
  known_.emplace(name, value);
  return value;
}

void GraphQuantizer::forget(const std::string& name) {
  if (GraphQuantizer* owner = owner_of(name)) owner->known_.erase(name);
}

void GraphQuantizer::keep(const std::string& name) {
  for (GraphQuantizer* graph = this; graph; graph = graph->parent_) {
    const auto found = graph->known_.find(name);
    if (found == graph->known_.end()) {
      if (graph->available_.count(name) > 0 || graph->initializers_.count(name) > 0) return;
      continue;
    }
    if (graph->available_.count(name) > 0) return;
    const QuantizedValue& value = found->second;
    // Channels are those of the last axis. The standard operator has an axis since 13.
    const bool per_channel = value.axis >= 0;
    OnnxNode node = make_node("DequantizeLinear", {value.data, value.scale, value.zero_point},
                              {name}, name + "_DequantizeLinear");
    if (per_channel) node.attrs.emplace_back("axis", int64_t{-1});
    if (per_channel && state_.opset < kAxisOpset) node.domain = "com.microsoft";
    graph->available_.insert(name);
    (value.is_constant ? graph->first_ : graph->made_).push_back(std::move(node));
    return;
  }
}

void GraphQuantizer::keep_all(const OnnxNode& node) {
  for (const std::string& input : node.inputs) keep(input);
}

// ---- changes -----------------------------------------------------------------------------------

void GraphQuantizer::emit(OnnxNode node) {
  available_.insert(node.outputs.begin(), node.outputs.end());
  made_.push_back(std::move(node));
}

void GraphQuantizer::add_initializer(const std::string& name, OnnxTensor tensor) {
  initializers_.emplace(name, graph_.initializers.size());
  graph_.initializers.push_back({name, std::move(tensor)});
}

bool GraphQuantizer::is_selected(const OnnxNode& node) const {
  const bool is_gemm = node.op == "Gemm";
  // In onnxruntime's tool a Gemm is known by the name of the MatMul that it becomes.
  const auto among = [&](const std::set<std::string>& names) {
    return names.count(node.name) > 0 || (is_gemm && names.count(node.name + "_MatMul") > 0);
  };
  const std::set<std::string>& types =
      options_.op_types.empty() ? dynamic_op_types() : options_.op_types;
  const bool of_type = types.count(node.op) > 0 || (is_gemm && types.count("MatMul") > 0);
  return of_type && !among(options_.nodes_to_exclude) &&
         (options_.nodes_to_quantize.empty() || among(options_.nodes_to_quantize)) &&
         !node.outputs.empty() && options_.outputs_to_keep.count(node.outputs[0]) == 0;
}

void GraphQuantizer::process(OnnxNode node) {
  if (options_.subgraphs) {
    change_subgraphs(node, [&](OnnxGraph& inner, const std::string&) {
      GraphQuantizer(state_, inner, this).run();
    });
  }
  for (const std::string& name : outer_values(node)) keep(name);
  if (dynamic_op_types().count(node.op) > 0) {
    NodeReport report{node.name, node.op, node.outputs.empty() ? "" : node.outputs[0]};
    if (!is_selected(node)) report.note = "not asked for";
    report.quantized = report.note.empty() && DynamicRules(*this).apply(node, report);
    const bool untold = node.op == "Transpose" && !report.quantized;
    if (!untold) state_.report.nodes.push_back(report);
    if (report.quantized) return;
  }
  keep_all(node);
  emit(std::move(node));
}

}  // namespace ortmodule
