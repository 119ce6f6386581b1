// Tensors that were computed from the weights of a model, as long as an import reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "inference/host_tensor.h"

namespace ortmodule {

/// Imports for other sizes share what does not depend on sizes. Not thread-safe but for bytes().
class ConstantStore {
 public:
  using Tensors = std::shared_ptr<const std::vector<HostTensor>>;
  /// Computes the tensors of some keys, given by their places in the list, in this order.
  using Compute =
      std::function<std::vector<std::vector<HostTensor>>(const std::vector<size_t>& places)>;

  /// The tensors of each key; those that nobody holds are computed, in one call.
  std::vector<Tensors> find(const std::vector<std::string>& keys, const Compute& compute);
  /// Of all tensors that somebody holds.
  int64_t bytes() const { return *bytes_; }

 private:
  Tensors counted(std::vector<HostTensor> tensors);

  std::unordered_map<std::string, std::weak_ptr<const std::vector<HostTensor>>> known_;
  // Shared with the tensors, which may be there longer than this.
  std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace ortmodule
