// Static quantization to operators of integers (QLinearConv, QGemm ...): which values exist
// quantized, and the nodes that were made. Each rule of an operator is in a file of qoperator/.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "quantization/finite_values.h"
#include "quantization/graph_edit.h"
#include "quantization/quantize_static.h"
#include "quantization/quantized_value.h"
#include "quantization/static_scales.h"

namespace ortmodule {

class QOperatorQuantizer {
 public:
  QOperatorQuantizer(OnnxModel& model, const StaticQuantization& options, ValueRanges& ranges);
  QuantizationReport run();

  // ---- for the rules, which ask for everything that they need before they change anything

  const StaticQuantization& options() const { return options_; }
  int64_t opset() const { return opset_; }
  /// Whether the value is of float32.
  bool is_float(const std::string& name) const { return types_.is_float(name); }
  /// The initializer of that name, or null.
  const OnnxTensor* initializer(const std::string& name) const;
  /// The value as integers; null if nothing made it so.
  const QuantizedValue* known(const std::string& name) const;
  /// Whether activation() has a scale for the value.
  bool has_scale(const std::string& name) const;
  /// Whether weight() has scales for the value: one, or, of a constant, one along the rule's axis.
  bool has_scales(const std::string& name, const ConstantRule& rule) const;
  /// Whether the scale of a quantized value is that of its own range.
  bool has_own_scale(const std::string& name) const;
  /// What a value's scale would be by its range, or what is given in place of it.
  ValueScale scale_of(const std::string& name) const { return scales_.of_value(name); }
  /// Whether quantizing the result of Relu or Clip does what the node does.
  bool quantizing_limits(const OnnxNode& node) const;
  /// The scale by the name of its tensor, of a value that has one for all.
  QuantizedScale scale_by_name(const std::string& scale) const;

  /// The value in the type of activations: quantized in each run if it is no initializer.
  QuantizedValue activation(const std::string& name);
  /// A constant with that rule, or an activation.
  QuantizedValue weight(const std::string& name, const ConstantRule& rule);
  /// The rule of weights, with a scale for each index of `axis` if there is one.
  ConstantRule weight_rule(int axis, bool reduce_range) const;
  /// Whether bias() can be called: a finite constant with, for a constant with a scale for each
  /// channel, an element for each of them.
  bool fits_bias(const std::string& name, const std::string& weight,
                 const ConstantRule& rule) const;
  /// A bias with the product of two scales and `factor`, as int32; with a factor of 0, zeros.
  std::string bias(const std::string& name, const QuantizedValue& input,
                   const QuantizedValue& weight, double factor = 1.0);
  /// Result `index` of a node as integers, with the scale of its range or `fixed`; known from now
  /// on.
  QuantizedValue result(const OnnxNode& node, size_t index = 0,
                        std::optional<QuantizedScale> fixed = {});
  /// Result `index` of a node as integers with the scale of another value; known from now on.
  QuantizedValue result_like(const OnnxNode& node, const QuantizedValue& other, size_t index = 0,
                             const char* suffix = "_quantized");
  /// From now on the value is that of another name.
  void alias(const std::string& name, const QuantizedValue& value) { known_[name] = value; }
  /// A float value for a node: dequantized if need be.
  void keep(const std::string& name);
  void add_initializer(const std::string& name, OnnxTensor tensor);
  std::string fresh(const std::string& wanted) { return names_.fresh(wanted); }
  void emit(OnnxNode node);
  /// A node of com.microsoft in the place of `node`, with its attributes: `operands` as they are.
  void emit_linear(const OnnxNode& node, std::string op, std::vector<std::string> operands,
                   const QuantizedValue& result, OnnxAttrs more = {});

 private:
  struct Bias {
    std::string name, data, input_scale, weight_scale;
    double factor = 1.0;
  };
  struct Constant {
    QuantizedValue value;
    ConstantScales scales;
    std::shared_ptr<WeightReport> report;
  };

  void process(OnnxNode node);
  /// The tensors of a scale and zero point that belong to a value.
  QuantizedValue described(const std::string& name, const ValueScale& scale);
  QuantizedValue constant(const std::string& name, const OnnxTensor& tensor,
                          const ConstantRule& rule);
  Constant* constant_of(const std::string& scale);
  void add_biases();
  void add_constants();

  OnnxModel& model_;
  const StaticQuantization& options_;
  StaticScales scales_;
  ValueTypes types_;
  TakenNames names_;
  int64_t opset_;
  std::map<std::string, double> scalars_;
  mutable FiniteValues finite_;
  QuantizationReport report_;
  NodeReport* row_ = nullptr;  // of the node that a rule looks at
  std::unordered_map<std::string, OnnxTensor> initializers_;
  std::unordered_map<std::string, QuantizedValue> known_;
  std::unordered_map<std::string, QuantizedValue> described_;  // by value
  std::unordered_map<std::string, QuantizedScale> by_name_;    // by the name of the scale's tensor
  std::map<std::string, Constant> constants_;                  // by the name of the constant
  std::unordered_map<std::string, std::string> constant_by_scale_;
  std::vector<Bias> biases_;
  std::unordered_set<std::string> available_;  // float values of the new nodes, and inputs
  std::vector<OnnxNode> first_;                // nodes that read constants only
  std::vector<OnnxNode> made_;
};

/// Quantizes a node and returns true, or changes nothing and says why in the report.
using QOperatorRule = bool (*)(QOperatorQuantizer&, const OnnxNode&, NodeReport&);

/// Registers the rule of operators at static initialization.
class QOperatorRegistrar {
 public:
  QOperatorRegistrar(QOperatorRule rule, std::initializer_list<std::string_view> operators);
};

/// REGISTER_QOPERATOR(rule, "Add", "Mul");
#define ORTM_QOPERATOR_INNER(number, rule, ...) \
  static const ::ortmodule::QOperatorRegistrar qoperator_registrar_##number(rule, {__VA_ARGS__})
#define ORTM_QOPERATOR(number, rule, ...) ORTM_QOPERATOR_INNER(number, rule, __VA_ARGS__)
#define REGISTER_QOPERATOR(rule, ...) ORTM_QOPERATOR(__COUNTER__, rule, __VA_ARGS__)

/// Writes the reason to the report and returns false.
bool refuse(NodeReport& report, std::string why);

}  // namespace ortmodule
