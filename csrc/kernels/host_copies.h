// Copies between a device and the host that run beside the steps of a plan.
#pragma once

#include <cstdint>

namespace ortmodule {

/// The copies of one run. A copy begins where its step stands in the order of the steps: it sees
/// what earlier steps have written. It may end at any time until `await`, so until then nothing may
/// write its source, and nothing may touch its destination.
class HostCopies {
 public:
  virtual ~HostCopies() = default;
  /// Begins a copy of `bytes` bytes from device memory to a planned place in host memory.
  virtual void to_host(void* host, const void* device, int64_t bytes) = 0;
  /// Begins a copy the other way.
  virtual void to_device(void* device, const void* host, int64_t bytes) = 0;
  /// Has later steps wait for the end of the copy to `destination`.
  virtual void await(const void* destination) = 0;
  /// Has all that follows wait for the copies that are still under way: before memory is freed that
  /// no step has waited for.
  virtual void finish() = 0;
};

}  // namespace ortmodule
