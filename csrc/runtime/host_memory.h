// Memory of sessions that run without torch: mapped blocks that go back to the system.
#pragma once

#include <cstdint>
#include <memory>

#include "base/buffer.h"

namespace ortmodule {

/// Maps every block by itself, outside of the C library's heap, so that nothing stays behind in a
/// heap that does not shrink. Blocks may outlive the allocator. Thread-safe.
class HostMemory : public Allocator {
 public:
  /// Keeps freed blocks of up to `kept_bytes` in total for later runs.
  explicit HostMemory(int64_t kept_bytes = 0);
  ~HostMemory() override;

  /// Zeroed unless it was used before; aligned to a page. Throws Error if the system has no memory.
  Buffer allocate(int64_t bytes) override;
  /// Returns all kept blocks to the system and keeps up to `kept_bytes` from now on.
  void keep(int64_t kept_bytes);

  /// Bytes that callers hold, as they asked for them.
  int64_t held_bytes() const;
  /// The most that was held since the last reset.
  int64_t peak_bytes() const;
  void reset_peak();
  /// Bytes mapped now, kept blocks and rounding to pages included.
  int64_t mapped_bytes() const;

 private:
  class Blocks;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace ortmodule
