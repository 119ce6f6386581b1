#include "kernels/aten/allocation_counter.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "kernels/aten/engine_device.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {

void AllocationCounter::reportMemoryUsage(void* block, int64_t bytes, size_t, size_t,
                                          c10::Device device) {
  if (device != engine_device()) return;
  if (bytes > 0)
    blocks_[block] = bytes;
  else
    blocks_.erase(block);
  now_ += bytes;
  peak_ = std::max(peak_, now_);
}

int64_t AllocationCounter::peak_beyond(std::span<const Buffer> results) const {
  int64_t given = 0;
  for (const Buffer& result : results) {
    const auto after = blocks_.upper_bound(result.data());
    if (!result.data() || after == blocks_.begin()) continue;
    const auto& [block, bytes] = *std::prev(after);
    const bool inside = std::less<>()(result.data(), static_cast<const char*>(block) + bytes);
    if (inside) given += bytes;
  }
  return std::max<int64_t>(peak_ - given, 0);
}

void AtenLibraryMeter::start() {
  counting_.reset();
  counter_.reset();
  const c10::DebugInfoKind hook = c10::DebugInfoKind::PROFILER_STATE;
  if (c10::ThreadLocalDebugInfo::get(hook)) return;
  counter_ = std::make_shared<AllocationCounter>();
  counting_.emplace(hook, counter_);
}

int64_t AtenLibraryMeter::stop(const StepFacts& facts, std::span<const Buffer> results,
                               int64_t declared_bytes) {
  if (!counter_) return 0;
  counting_.reset();
  const int64_t bytes = counter_->peak_beyond(results);
  // A note looks the step up by all its facts under a lock, so most runs make none.
  const bool gives = std::ranges::any_of(results, [](const Buffer& given) { return !!given; });
  if (bytes > declared_bytes) note_library_bytes(facts, gives, static_cast<size_t>(bytes));
  return bytes;
}

}  // namespace ortmodule
