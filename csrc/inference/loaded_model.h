// A model that sessions share: its file and its weights.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "inference/host_tensor.h"
#include "onnx/onnx_model.h"
#include "onnx/onnx_reader.h"
#include "runtime/host_memory.h"

namespace ortmodule {

/// Weights stay where the file has them; only those that lie at addresses which no kernel can read
/// are copied, once. Thread-safe.
class LoadedModel {
 public:
  explicit LoadedModel(OnnxModel model, OnnxFacts facts = {})
      : model_(std::move(model)), facts_(std::move(facts)) {}

  const OnnxModel& model() const { return model_; }
  const OnnxFacts& facts() const { return facts_; }
  /// The elements of a weight at an aligned address, which stays valid as long as the model.
  const void* elements(const OnnxTensor& weight);
  /// Whether kernels can read the elements where the file has them.
  static bool is_aligned(const OnnxTensor& weight);
  /// Tensors computed from weights, once for each key.
  std::shared_ptr<const std::vector<HostTensor>> constants(
      const std::string& key, const std::function<std::vector<HostTensor>()>& compute);
  /// Bytes of weights that sessions have asked for, and of what was computed from them.
  int64_t weight_bytes() const;

 private:
  const void* copy(const OnnxTensor& weight);

  const OnnxModel model_;
  const OnnxFacts facts_;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, const void*> places_;  // bytes in the file -> elements
  std::vector<SharedBytes> kept_;                        // keeps the keys of places_ alive
  HostMemory memory_;
  std::vector<Buffer> blocks_;  // of copies
  int64_t left_bytes_ = 0;      // at the end of the last block
  int64_t weight_bytes_ = 0;
  std::unordered_map<std::string, std::shared_ptr<const std::vector<HostTensor>>> constants_;
};

}  // namespace ortmodule
