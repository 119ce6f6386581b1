// Memory of sessions that run without torch: mapped blocks that go back to the system.
#pragma once

#include <cstdint>
#include <memory>

#include "base/buffer.h"

namespace ortmodule {

/// Maps blocks outside of the C library's heap, so that nothing stays behind in a heap that does
/// not shrink; only small ones come from the heap. Blocks may outlive the allocator. Thread-safe.
///
/// Freed blocks may be kept for later runs. Held and kept blocks together never exceed the most
/// that was held at once in the last 200 to 300 ms, but for what kept blocks grow by, so that
/// keeping raises no peak, a block of rare large runs does not stay while small ones follow, and
/// nothing stays when nothing runs.
class HostMemory : public Allocator {
 public:
  enum class Keep : uint8_t { Nothing, WhileUsed };

  /// Small: a block becomes resident as it is written, not two megabytes at a time.
  enum class Pages : uint8_t { Huge, Small };

  explicit HostMemory(Keep keep = Keep::Nothing, Pages pages = Pages::Huge);
  ~HostMemory() override;

  /// Aligned to 64 bytes; the content is undefined. Throws Error if the system has no memory. A
  /// kept block is used again if it is of about this size, and grows if it is smaller.
  Buffer allocate(int64_t bytes) override;
  /// The same for the block of a run, which any larger kept block may serve.
  Buffer allocate_block(int64_t bytes);
  /// Returns the whole pages inside of a part of a block, whose content is lost.
  static void discard(const void* part, size_t bytes);
  /// Gives a block its pages now: as one call, not as a fault for each. For blocks that are written
  /// as a whole.
  static void make_resident(const Buffer& block);
  /// Gives a large block of small pages huge ones now, if the system can.
  static void use_huge_pages(const Buffer& block);
  /// Returns all kept blocks to the system now.
  void return_kept();
  /// Keeps nothing while more than `bytes` would be held and kept.
  void limit_kept(int64_t bytes);

  /// Bytes that callers hold, as they asked for them.
  int64_t held_bytes() const;
  /// The most that was held since the last reset.
  int64_t peak_bytes() const;
  void reset_peak();
  /// Bytes of freed blocks that are kept.
  int64_t kept_bytes() const;
  /// Bytes mapped now, kept blocks and rounding to pages included, small blocks not.
  int64_t mapped_bytes() const;

 private:
  class Blocks;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace ortmodule
