// The weights of a session on a device: uploaded once, whatever is imported from them.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "inference/constant_store.h"
#include "inference/loaded_model.h"
#include "runtime/run_device.h"

namespace ortmodule {

/// Thread-safe.
class DeviceWeights {
 public:
  explicit DeviceWeights(RunDevice& device) : device_(device) {}

  /// The address of a weight on the device. It stays valid as long as this.
  const void* elements(const OnnxTensor& weight, const LoadedModel& model);
  /// Tensors computed from weights on the host (ConstantStore::find), on the device.
  std::vector<ConstantStore::Tensors> constants(const std::vector<std::string>& keys,
                                                const ConstantStore::Compute& compute);
  int64_t bytes() const;

 private:
  RunDevice& device_;
  mutable std::mutex mutex_;
  std::map<std::string, Buffer> weights_;  // by LoadedModel::key_of()
  std::vector<SharedBytes> kept_;          // keeps the addresses in these keys alive
  ConstantStore constants_{/*on_host=*/false};
  int64_t bytes_ = 0;
};

/// Memory on the device with a copy of what the host has at `data`.
Buffer upload(RunDevice& device, const void* data, int64_t bytes);

}  // namespace ortmodule
