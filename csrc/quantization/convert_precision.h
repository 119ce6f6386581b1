// Reduced precision: a float32 model in float16, or with weights of 16 bits that are cast where
// they are read. The files run in onnxruntime too, whose CPU has no arithmetic in bfloat16: of that
// type are weights only.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "onnx/onnx_model.h"
#include "quantization/quantize_dynamic.h"

namespace ortmodule {

struct PrecisionConversion {
  DType type = DType::Float16;             // or BFloat16
  bool weights_only = false;               // nodes compute in float32
  bool keep_io_types = true;               // inputs and outputs of the model stay float32
  std::set<std::string> op_types_to_keep;  // in float32
  std::set<std::string> nodes_to_keep;     // names
  std::set<std::string> wide_values;       // beyond float16's range, as samples show
};

/// The float32 values that nodes of the main graph compute.
std::vector<std::string> computed_floats(const OnnxModel& model);

/// Converts in place. Nodes stay in float32 that have no form in float16, that read constants which
/// float16 does not hold, and those behind them or behind powers until the values are small again
/// (precision_rules.h); casts stand between. Initializers that are inputs as well stay float32, and
/// are cast in each run. Of bodies of If, Loop and Scan, inputs and outputs
/// stay float32. The report is as of quantize_dynamic: `quantized` is a node in 16 bits, or with
/// weights of 16 bits. Throws Error.
QuantizationReport convert_precision(OnnxModel& model, const PrecisionConversion& options);

}  // namespace ortmodule
