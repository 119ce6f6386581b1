// The state of dynamic quantization of one graph: which values exist quantized, and the nodes that
// were made. The rules of the operators are in dynamic_rules.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "quantization/graph_edit.h"
#include "quantization/quantize_dynamic.h"
#include "quantization/quantized_value.h"
#include "quantization/value_types.h"

namespace ortmodule {

/// What all graphs of a model share.
struct QuantizationState {
  const DynamicQuantization& options;
  TakenNames names;
  int64_t opset = 0;
  std::set<std::string> origins = {};  // first outputs of nodes that made weights
  QuantizationReport report = {};
};

class GraphQuantizer {
 public:
  using WeightPtr = std::shared_ptr<const ConstantWeight>;

  /// Takes the nodes out of `graph`; run() puts the new ones in.
  GraphQuantizer(QuantizationState& state, OnnxGraph& graph, GraphQuantizer* parent);
  void run();

 private:
  friend class DynamicRules;

  // ---- values
  /// The graph, this or one around it, that holds a value; null if none does.
  GraphQuantizer* owner_of(const std::string& name);
  WeightPtr find_weight(const std::string& name);
  const QuantizedValue* find_known(const std::string& name);
  /// The value in uint8 with one scale, quantized in each run if it is no initializer.
  std::optional<QuantizedValue> activation(const std::string& name, NodeReport& report);
  /// A constant; one scale if `axis` is -1. Nothing if it cannot be, with the reason in the report.
  std::optional<QuantizedValue> weight(const std::string& name, int axis, const RangeRule& rule,
                                       NodeReport& report);
  /// Makes a weight unknown again that was quantized for a node in vain.
  void forget(const std::string& name);
  /// The float value is there, dequantized if need be.
  void keep(const std::string& name);
  void keep_all(const OnnxNode& node);

  // ---- changes
  void emit(OnnxNode node);
  void add_initializer(const std::string& name, OnnxTensor tensor);
  std::string fresh(const std::string& wanted) { return state_.names.fresh(wanted); }
  void process(OnnxNode node);
  bool is_selected(const OnnxNode& node) const;
  WeightPtr weight_of_node(const OnnxNode& node);
  void add_origins(const std::string& name);
  QuantizedValue dynamic_value(const std::string& name);

  QuantizationState& state_;
  const DynamicQuantization& options_;
  OnnxGraph& graph_;
  GraphQuantizer* parent_;
  ValueTypes types_;
  std::vector<OnnxNode> nodes_;                            // as they were
  std::unordered_map<std::string, size_t> producers_;      // in nodes_
  std::unordered_map<std::string, size_t> initializers_;   // in the graph
  std::unordered_map<std::string, WeightPtr> transposed_;  // second operands of Gemms
  std::unordered_map<std::string, std::string> transposed_names_;
  std::unordered_map<std::string, QuantizedValue> known_;
  std::unordered_map<std::string, QuantizedValue> recurrent_;  // weights of DynamicQuantizeLSTM
  std::unordered_map<std::string, std::vector<std::string>> scale_products_;  // by node name
  std::unordered_set<std::string> available_;  // values of the new nodes, and inputs
  std::vector<OnnxNode> first_;                // nodes that read constants only
  std::vector<OnnxNode> made_;
};

/// The rules of the operators. Each returns whether it quantized the node; otherwise the report
/// says why, and nothing was changed.
class DynamicRules {
 public:
  explicit DynamicRules(GraphQuantizer& graph) : g_(graph) {}
  bool apply(const OnnxNode& node, NodeReport& report);

 private:
  bool matmul(const OnnxNode& node, NodeReport& report);
  /// Gemm with alpha and beta 1 as MatMul and Add.
  bool gemm(const OnnxNode& node, NodeReport& report);
  bool conv(const OnnxNode& node, NodeReport& report);
  bool gather(const OnnxNode& node, NodeReport& report);
  bool transpose(const OnnxNode& node, NodeReport& report);
  bool lstm(const OnnxNode& node, NodeReport& report);
  bool attention(const OnnxNode& node, NodeReport& report);
  bool embedding(const OnnxNode& node, NodeReport& report);

  std::optional<QuantizedValue> recurrent_weight(const std::string& name, NodeReport& report);
  /// The float32 weight `name`; null with the reason in the report.
  GraphQuantizer::WeightPtr float_weight(const std::string& name, NodeReport& report);
  RangeRule weight_rule(bool reduce_range) const;
  void integer_product(const OnnxNode& node, const char* op, const QuantizedValue& x,
                       const QuantizedValue& w, const std::string& result);
  void add_bias(const OnnxNode& node, const std::string& product, size_t rank);

  GraphQuantizer& g_;
};

}  // namespace ortmodule
