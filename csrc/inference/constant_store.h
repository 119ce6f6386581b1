// Tensors that were computed from the weights of a model, as long as an import reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "inference/host_tensor.h"

namespace ortmodule {

/// Imports for other sizes share what does not depend on sizes. Not thread-safe but for bytes().
/// What it holds lies together: it is made while a heap is full of gaps, and stays.
class ConstantStore {
 public:
  using Tensors = std::shared_ptr<const std::pmr::vector<HostTensor>>;
  /// Computes the tensors of some keys, given by their places in the list, in this order.
  using Compute =
      std::function<std::vector<std::vector<HostTensor>>(const std::vector<size_t>& places)>;

  /// `on_host`: the memory of tensors is, so that small ones are copied to where the others are.
  explicit ConstantStore(bool on_host = true) : on_host_(on_host) {}

  /// The tensors of each key; those that nobody holds are computed, in one call.
  std::vector<Tensors> find(const std::vector<std::string>& keys, const Compute& compute);
  /// Of all tensors that somebody holds.
  int64_t bytes() const { return *bytes_; }

 private:
  struct Counted;
  using Pool = std::shared_ptr<std::pmr::memory_resource>;

  Tensors counted(std::vector<HostTensor> tensors);
  static void gather(Counted& made);

  const bool on_host_;
  // Shared with the tensors, which may be there longer than this, as is the next one.
  // Its pieces are small: a heap of few constants is not larger than they are.
  const Pool pool_ = std::make_shared<std::pmr::synchronized_pool_resource>(
      std::pmr::pool_options{.max_blocks_per_chunk = 32, .largest_required_pool_block = 1280});
  const std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  // By a hash of the key that stands for it.
  std::pmr::map<std::pmr::string, std::weak_ptr<const std::pmr::vector<HostTensor>>> known_{
      pool_.get()};
};

}  // namespace ortmodule
