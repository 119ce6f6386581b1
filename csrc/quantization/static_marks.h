// Which values static quantization turns into integers, and why: the rules of the operators.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quantization/finite_values.h"
#include "quantization/graph_edit.h"
#include "quantization/quantize_static.h"
#include "quantization/value_types.h"

namespace ortmodule {

/// Whether the options ask for the node.
bool is_selected(const OnnxNode& node, const StaticQuantization& options);

struct MarkedValue {
  bool is_weight = false;   // in the type of weights
  int axis = -1;            // of a scale per index
  std::string shares = {};  // the value whose scale it takes
};

struct MarkedBias {
  std::string name;
  std::string input;  // its scale is that of the input times that of the weight
  std::string weight;
  double beta = 1.0;  // of the Gemm
  std::string output = {};
};

/// Walks the nodes in order. Relu and Clip whose range their operand can take are removed.
class StaticMarks {
 public:
  StaticMarks(OnnxModel& model, const StaticQuantization& options, const ValueRanges* ranges);

  std::vector<std::string> order;  // of the marked values
  std::map<std::string, MarkedValue> values;
  std::vector<MarkedBias> biases;
  QuantizationReport report;

  const OnnxTensor* initializer(const std::string& name) const;

 private:
  struct Rule;
  static const std::map<std::string, void (StaticMarks::*)(OnnxNode&)>& rules();

  bool is_quantizable(const std::string& name) const;
  bool has_scale(const std::string& name);
  bool is_marked(const std::string& name) const;
  void mark(const std::string& name, MarkedValue how);
  void mark_activation(const std::string& name) { mark(name, {}); }
  void mark_weight(const std::string& name, int64_t axis, const std::string& op);
  void mark_same(const std::string& output, const std::string& input);
  void mark_bias(OnnxNode& node, size_t index, double beta);
  bool keeps_output(const OnnxNode& node) const {
    return options_.ops_without_output.count(node.op) == 0;
  }

  void all_values(OnnxNode& node);
  void conv(OnnxNode& node);
  void gemm(OnnxNode& node);
  void matmul(OnnxNode& node);
  void removable(OnnxNode& node);
  void direct(OnnxNode& node);
  void direct_since(OnnxNode& node, int64_t opset);
  void resize(OnnxNode& node) { direct_since(node, 11); }
  void max_pool(OnnxNode& node) { direct_since(node, 12); }
  void pad(OnnxNode& node);
  void split(OnnxNode& node);
  void gather(OnnxNode& node);
  void where(OnnxNode& node);
  void normalization(OnnxNode& node);
  bool take_output(const std::string& operand, const std::string& output);
  std::optional<double> pad_value(const OnnxNode& node) const;
  bool changes_nothing(const OnnxNode& node);

  OnnxModel& model_;
  const StaticQuantization& options_;
  const ValueRanges* ranges_;
  ValueTypes types_;
  FiniteValues finite_;
  TakenNames names_;
  int64_t opset_;
  std::map<std::string, double> scalars_;
  std::unordered_map<std::string, size_t> initializers_;
  std::set<std::string> inputs_, outputs_, unscaled_;
  std::set<const OnnxNode*> removed_;
};

}  // namespace ortmodule
