#include "inference/device_weights.h"

#include <utility>

#include "runtime/host_memory.h"

namespace ortmodule {

Buffer upload(RunDevice& device, const void* data, int64_t bytes) {
  Buffer memory = device.allocator().allocate(bytes);
  if (bytes > 0) device.upload(memory.data(), data, bytes);
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
  bytes_ += bytes;
  return weights_.emplace(key, upload(device_, copy.data(), bytes)).first->second.data();
}

std::vector<ConstantStore::Tensors> DeviceWeights::constants(
    const std::vector<std::string>& keys, const ConstantStore::Compute& compute) {
  const std::lock_guard lock(mutex_);
  return constants_.find(keys, [&](const std::vector<size_t>& places) {
    auto made = compute(places);
    for (std::vector<HostTensor>& tensors : made)
      for (HostTensor& tensor : tensors)
        if (tensor.memory)
          tensor.memory = upload(device_, tensor.memory.data(), tensor.byte_count());
    return made;
  });
}

int64_t DeviceWeights::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_ + constants_.bytes();
}

}  // namespace ortmodule
