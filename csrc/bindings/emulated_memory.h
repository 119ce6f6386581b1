// Memory of the emulated device: the process crashes where the host touches it outside of a scope.
#pragma once

#include "base/buffer.h"

namespace ortmodule::bindings {

/// Thread-safe. Blocks must be freed before the end of the process.
class EmulatedMemory : public Allocator {
 public:
  Buffer allocate(int64_t bytes) override;
};

/// While one exists, in any thread, emulated memory can be touched.
class EmulatedMemoryScope {
 public:
  EmulatedMemoryScope();
  EmulatedMemoryScope(const EmulatedMemoryScope&) = delete;
  EmulatedMemoryScope& operator=(const EmulatedMemoryScope&) = delete;
  ~EmulatedMemoryScope();
};

}  // namespace ortmodule::bindings
