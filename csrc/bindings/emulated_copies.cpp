#include "bindings/emulated_copies.h"

#include <atomic>
#include <cstring>

#include "base/error.h"

namespace ortmodule::bindings {
namespace {

std::atomic<CopyTime> copy_time{CopyTime::Late};

constexpr int kPoison = 0xFF;  // makes NaN of every float

}  // namespace

void emulate_copies(CopyTime time) { copy_time = time; }

void EmulatedCopies::to_host(void* host, const void* device, int64_t bytes) {
  begin(host, device, bytes);
}

void EmulatedCopies::to_device(void* device, const void* host, int64_t bytes) {
  begin(device, host, bytes);
}

void EmulatedCopies::begin(void* to, const void* from, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const bool early = copy_time == CopyTime::Early;
  if (early) {
    std::memcpy(to, from, size);
  } else {
    std::memset(to, kPoison, size);
  }
  pending_[to] = early ? Copy() : Copy{from, bytes};
}

void EmulatedCopies::await(const void* destination) {
  const auto found = pending_.find(const_cast<void*>(destination));
  ORTM_ASSERT(found != pending_.end(), "a step waits for a copy that has not begun");
  const auto [to, copy] = *found;
  if (copy.source) std::memcpy(to, copy.source, static_cast<size_t>(copy.bytes));
  pending_.erase(found);
}

void EmulatedCopies::finish() { pending_.clear(); }

}  // namespace ortmodule::bindings
