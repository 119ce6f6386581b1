// Copies between the emulated device and the host, as late or as early as a real device could make
// them.
#pragma once

#include <unordered_map>

#include "kernels/host_copies.h"

namespace ortmodule::bindings {

/// When emulated copies happen.
enum class CopyTime : uint8_t {
  Late,  // when a step waits for them; until then the destination is poisoned
  Early  // where they begin
};

/// For copies that begin from now on, in all threads.
void emulate_copies(CopyTime time);

class EmulatedCopies : public HostCopies {
 public:
  ~EmulatedCopies() override { finish(); }
  void to_host(void* host, const void* device, int64_t bytes) override;
  void to_device(void* device, const void* host, int64_t bytes) override;
  void await(const void* destination) override;
  void finish() override;

 private:
  struct Copy {
    const void* source = nullptr;
    int64_t bytes = 0;
  };
  void begin(void* to, const void* from, int64_t bytes);

  std::unordered_map<void*, Copy> pending_;  // by destination
};

}  // namespace ortmodule::bindings
