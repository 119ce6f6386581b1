// How a session runs a model.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "inference/memory_options.h"
#include "onnx/onnx_file.h"
#include "runtime/run_device.h"

namespace ortmodule {

struct InferenceOptions {
  int64_t threads = 0;  // 0: one for each core
  /// Values of named sizes.
  std::map<std::string, int64_t> fixed_sizes;
  std::map<std::string, int64_t> fixed_denotations;  // the same by what a size denotes
  uint64_t seed = 0;  // of random operators; 0: another one for each session
  int64_t optimization_level = kAllOptimizations;  // onnxruntime's GraphOptimizationLevel
  std::set<std::string> disabled_passes;           // of the optimizer, by name
  bool profiling = false;                          // from the start
  bool half_weights = false;                       // float32 weights are kept in 16 bits
  OnnxDataPlacement optimized_data = {};           // of an optimized model that is saved
  RunDeviceOptions device = {};                    // that runs the model

  static constexpr int64_t kAllOptimizations = 99;
  RunMemoryOptions memory = {};
};

}  // namespace ortmodule
