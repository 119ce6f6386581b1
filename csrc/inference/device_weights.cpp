#include "inference/device_weights.h"

#include <utility>

#include "runtime/host_memory.h"

namespace ortmodule {

Buffer upload(RunDevice& device, const void* data, int64_t bytes) {
  Buffer memory = device.allocator().allocate(bytes);
  if (bytes > 0) device.upload(memory.data(), data, bytes);
  return memory;
}

Buffer DeviceWeights::uploaded(const void* data, int64_t bytes) {
  Buffer memory = upload(device_, data, bytes);
  bytes_ += bytes;
  return memory;
}

const void* DeviceWeights::elements(const OnnxTensor& weight, const LoadedModel& model) {
  const std::lock_guard lock(mutex_);
  const std::string key = LoadedModel::key_of(weight);
  const auto known = weights_.find(key);
  if (known != weights_.end()) return known->second.data();
  const int64_t bytes = LoadedModel::memory_bytes(weight);
  // Through a copy: one weight at a time is resident on the host.
  HostMemory memory;
  const Buffer copy = memory.allocate(bytes);
  model.copy_weight(weight, copy.data());
  kept_.push_back(weight.bytes);
  return weights_.emplace(key, uploaded(copy.data(), bytes)).first->second.data();
}

DeviceWeights::Tensors DeviceWeights::constants(
    const std::string& key, const std::function<std::vector<HostTensor>()>& compute) {
  const std::lock_guard lock(mutex_);
  Tensors& tensors = constants_[key];
  if (tensors) return tensors;
  std::vector<HostTensor> made = compute();
  for (HostTensor& tensor : made)
    if (tensor.memory) tensor.memory = uploaded(tensor.memory.data(), tensor.byte_count());
  tensors = std::make_shared<const std::vector<HostTensor>>(std::move(made));
  return tensors;
}

int64_t DeviceWeights::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace ortmodule
