// Memory of the host that a piece keeps values in, registered with the device at its exact size.
#pragma once

#include <memory>

#include "bindings/device_runtime.h"

namespace ortmodule::bindings {

/// Registering memory takes as long as copying it, so blocks are kept for the next runs: as many as
/// runs overlap, of the largest size that was needed. They go with the piece. (torch's allocator
/// of pinned memory rounds sizes up to powers of two.) Thread-safe.
class PinnedBlocks : public Allocator {
 public:
  explicit PinnedBlocks(const DeviceRuntime& runtime);
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;
  ~PinnedBlocks() override;

  /// A block that may be reused as soon as it is freed, before the copies to it have ended: by runs
  /// of the same stream, whose copies come behind.
  Buffer allocate(int64_t bytes) override;
  /// Bytes of all blocks, in use or kept.
  int64_t bytes() const;

 private:
  struct Block;
  struct State;
  static void give_back(void* block);

  const DeviceRuntime& runtime_;
  std::shared_ptr<State> state_;
};

}  // namespace ortmodule::bindings
