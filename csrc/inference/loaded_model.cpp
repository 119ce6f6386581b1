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
  const bool aligned = reinterpret_cast<uintptr_t>(source) % size_of(weight.dtype) == 0;
  place->second = aligned ? source : copy(weight);
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

int64_t LoadedModel::weight_bytes() const {
  const std::lock_guard lock(mutex_);
  return weight_bytes_;
}

}  // namespace ortmodule
