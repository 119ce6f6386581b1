// The weights of a session on a device: uploaded once, whatever is imported from them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference/host_tensor.h"
#include "inference/loaded_model.h"
#include "runtime/run_device.h"

namespace ortmodule {

/// Thread-safe.
class DeviceWeights {
 public:
  using Tensors = std::shared_ptr<const std::vector<HostTensor>>;

  explicit DeviceWeights(RunDevice& device) : device_(device) {}

  /// The address of a weight on the device. It stays valid as long as this.
  const void* elements(const OnnxTensor& weight, const LoadedModel& model);
  /// Tensors computed from weights on the host, once for each key, on the device.
  Tensors constants(const std::string& key,
                    const std::function<std::vector<HostTensor>()>& compute);
  int64_t bytes() const;

 private:
  Buffer uploaded(const void* data, int64_t bytes);

  RunDevice& device_;
  mutable std::mutex mutex_;
  std::map<std::string, Buffer> weights_;  // by LoadedModel::key_of()
  std::vector<SharedBytes> kept_;          // keeps the addresses in these keys alive
  std::map<std::string, Tensors> constants_;
  int64_t bytes_ = 0;
};

/// Memory on the device with a copy of what the host has at `data`.
Buffer upload(RunDevice& device, const void* data, int64_t bytes);

}  // namespace ortmodule
