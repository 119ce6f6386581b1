// The state of a conversion of one graph: in which types each value is there.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "quantization/convert_precision.h"
#include "quantization/graph_edit.h"
#include "quantization/value_types.h"

namespace ortmodule {

/// What all graphs of a model share.
struct PrecisionState {
  const PrecisionConversion& options;
  TakenNames names;
  std::set<std::string> fed;           // initializers that calls may replace
  std::set<std::string> origins = {};  // Constant nodes that nobody may read any more
  QuantizationReport report = {};
};

class PrecisionConverter {
 public:
  /// Takes the nodes out of `graph`; run() puts the new ones in.
  PrecisionConverter(PrecisionState& state, OnnxGraph& graph, PrecisionConverter* parent);
  void run();

 private:
  using WeightPtr = std::shared_ptr<const ConstantWeight>;

  /// A float32 value, or a weight: its names in both types; "" where it is not there (yet).
  struct Variants {
    std::string full, half;
    bool is_wide = false;  // may be beyond float16's range
    WeightPtr weight = nullptr;
    std::shared_ptr<WeightReport> facts = nullptr;  // of a converted weight
  };

  PrecisionConverter* owner_of(const std::string& name);
  Variants* find(const std::string& name);
  /// The name of a value in that type, which is cast or rounded if need be.
  std::string full(const std::string& name);
  std::string half(const std::string& name, NodeReport& report);
  std::string half_weight(const std::string& name, Variants& value, NodeReport& report);

  void add_weight(const std::string& name, const OnnxTensor& tensor, const std::string& origin);
  void process(OnnxNode node);
  /// Why a node stays in float32; nothing if it does not.
  std::string reason_to_keep(const OnnxNode& node);
  bool moves_full(const OnnxNode& node);
  bool has_floats(const OnnxNode& node) const;
  void emit_half(OnnxNode node, NodeReport& report);
  void emit_full(OnnxNode node, NodeReport& report);
  void finish_outputs();
  bool keeps_name(const std::string& name) const;

  PrecisionState& state_;
  const PrecisionConversion& options_;
  OnnxGraph& graph_;
  PrecisionConverter* parent_;
  ValueTypes types_;
  std::vector<OnnxNode> nodes_, made_;
  std::unordered_map<std::string, Variants> values_;
  std::set<std::string> half_io_;  // inputs and outputs of the model that become float16
};

}  // namespace ortmodule
