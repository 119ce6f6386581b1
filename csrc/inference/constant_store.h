// Tensors that were computed from the weights of a model, as long as an import reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "base/page_region.h"
#include "inference/host_tensor.h"

namespace ortmodule {

/// Imports for other sizes share what does not depend on sizes. Not thread-safe but for bytes().
class ConstantStore {
 public:
  using Tensors = std::shared_ptr<const std::pmr::vector<HostTensor>>;
  using Memory = std::shared_ptr<std::pmr::memory_resource>;
  /// Computes the tensors of some keys, given by their places in the list, in this order.
  using Compute =
      std::function<std::vector<std::vector<HostTensor>>(const std::vector<size_t>& places)>;

  /// `on_host`: the memory of tensors is, so that small ones are copied to `memory`, where the
  /// store has what stays.
  explicit ConstantStore(bool on_host = true, Memory memory = std::make_shared<PageRegion>())
      : on_host_(on_host), memory_(std::move(memory)) {}

  /// The tensors of each key; those that nobody holds are computed, in one call.
  std::vector<Tensors> find(const std::vector<std::string>& keys, const Compute& compute);
  /// Of all tensors that somebody holds.
  int64_t bytes() const { return *bytes_; }

 private:
  struct Counted;

  Tensors counted(std::vector<HostTensor> tensors);
  static void gather(Counted& made);

  const bool on_host_;
  const Memory memory_;  // shared with the tensors, which may outlive this, as is the next one
  const std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  // By a hash of the key that stands for it.
  std::pmr::map<std::pmr::string, std::weak_ptr<const std::pmr::vector<HostTensor>>> known_{
      memory_.get()};
};

}  // namespace ortmodule
