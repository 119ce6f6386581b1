// Dynamic quantization: weights become 8-bit integers in the file, activations in each run. Nodes
// and names are those of onnxruntime 1.32's quantize_dynamic, so that files interchange. Beyond it,
// weights in Constant nodes and behind Identity, Transpose and Cast are quantized too, and what
// would change results stays in float32.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"
#include "quantization/constant_weight.h"

namespace ortmodule {

/// Options with the meaning that onnxruntime's arguments of these names have.
struct DynamicQuantization {
  std::set<std::string> op_types;  // empty: all that are known
  bool per_channel = false;
  bool reduce_range = false;
  QuantizedType weight_type = QuantizedType::Int8;
  std::set<std::string> nodes_to_quantize;  // names; empty: all
  std::set<std::string> nodes_to_exclude;
  std::optional<bool> weight_symmetric;  // nullopt: of signed types
  bool activation_symmetric = false;     // of constants in the place of activations
  bool subgraphs = false;
  bool force_direct = false;  // Transpose of a constant is quantized
  bool const_b_only = true;   // MatMul with a constant second operand only
  std::optional<double> least_range;
  std::set<std::string> outputs_to_keep;  // nodes by their first output, which needs no name; ours
};

/// What became of a node whose operator can be quantized.
struct NodeReport {
  std::string name;
  std::string op;      // as in the file that was read
  std::string output;  // the first one
  bool quantized = false;
  std::string note = {};  // why not, or what is special
  std::vector<std::shared_ptr<WeightReport>> weights = {};
};

struct QuantizationReport {
  std::vector<NodeReport> nodes;
  std::vector<std::string> notes;  // of the model
};

/// Quantizes in place. The new weights are made when the model is written, and the errors in the
/// report with them. Throws Error.
QuantizationReport quantize_dynamic(OnnxModel& model, const DynamicQuantization& options);

/// Operators that quantize_dynamic() knows.
const std::set<std::string>& dynamic_op_types();

}  // namespace ortmodule
