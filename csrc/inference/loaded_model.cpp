#include "inference/loaded_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ortmodule {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kBlockBytes = 1 << 20;  // small copies share blocks of this size

}  // namespace

const void* LoadedModel::elements(const OnnxTensor& weight) {
  const auto bytes = static_cast<int64_t>(weight.bytes.size());
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const void* source = weight.bytes.data();
  auto [place, added] = places_.emplace(source, nullptr);
  if (!added) return place->second;
  kept_.push_back(weight.bytes);
  weight_bytes_ += bytes;
  place->second = is_aligned(weight) ? source : copy(weight);
  return place->second;
}

const void* LoadedModel::copy(const OnnxTensor& weight) {
  const auto bytes = static_cast<int64_t>(weight.bytes.size());
  const int64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (left_bytes_ < taken) {
    blocks_.push_back(memory_.allocate(std::max(taken, kBlockBytes)));
    left_bytes_ = blocks_.back().bytes();
  }
  Buffer& block = blocks_.back();
  void* to = static_cast<char*>(block.data()) + (block.bytes() - left_bytes_);
  std::memcpy(to, weight.bytes.data(), weight.bytes.size());
  left_bytes_ -= taken;
  return to;
}

bool LoadedModel::is_aligned(const OnnxTensor& weight) {
  return reinterpret_cast<uintptr_t>(weight.bytes.data()) % size_of(weight.dtype) == 0;
}

std::shared_ptr<const std::vector<HostTensor>> LoadedModel::constants(
    const std::string& key, const std::function<std::vector<HostTensor>()>& compute) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const std::vector<HostTensor>>& known = constants_[key];
  if (!known) {
    known = std::make_shared<const std::vector<HostTensor>>(compute());
    for (const HostTensor& tensor : *known) weight_bytes_ += tensor.byte_count();
  }
  return known;
}

int64_t LoadedModel::weight_bytes() const {
  const std::lock_guard lock(mutex_);
  return weight_bytes_;
}

}  // namespace ortmodule
