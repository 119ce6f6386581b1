// A thread for the process that lets memory go after a while without use. It exists only while
// something is kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

namespace ortmodule {

inline constexpr std::chrono::milliseconds kIdleTick{100};

/// Something that keeps memory for later.
class IdleKeeper {
 public:
  virtual ~IdleKeeper() = default;
  /// Called once in each kIdleTick, by the thread. Returns whether something is still kept; if not,
  /// it is not called again.
  virtual bool tick() = 0;
};

/// Calls `keeper` from now on, as long as it exists. Returns false if there can be no thread: then
/// nothing may be kept.
bool tick_until_idle(std::weak_ptr<IdleKeeper> keeper);

/// Whether the thread runs. False in a child after fork(), where keepers have to be given again.
bool idle_clock_runs();

/// Says that about so many bytes of the C library's heap were freed: they go back to the system
/// when nothing more is freed for a while. The heap itself would keep them between live objects.
void note_freed_heap(int64_t bytes);

}  // namespace ortmodule
