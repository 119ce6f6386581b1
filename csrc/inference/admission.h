// Keeps the runs of a session within a limit of memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace ortmodule {

/// Admits runs while the bytes that they take together stay within the limit. Others wait, in the
/// order of their arrival, so that small runs cannot keep a large one out. Thread-safe.
class Admission {
 public:
  /// Held by an admitted run until its end.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept
        : from_(std::exchange(other.from_, nullptr)), bytes_(other.bytes_) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (from_) from_->leave(bytes_);
    }

   private:
    friend class Admission;
    Pass(Admission* from, int64_t bytes) : from_(from), bytes_(bytes) {}
    Admission* from_ = nullptr;
    int64_t bytes_ = 0;
  };

  /// Waits until `bytes` are left of `most_bytes`. The caller refuses a run of more than that.
  /// Throws Error once `terminate` is true, which nobody announces.
  Pass admit(int64_t bytes, int64_t most_bytes, const std::atomic<bool>* terminate = nullptr) {
    constexpr std::chrono::milliseconds kLook{5};
    std::unique_lock lock(mutex_);
    const uint64_t turn = arrived_++;
    waiting_.push_back(turn);
    const auto is_next = [&] {
      return waiting_.front() == turn && (used_ == 0 || bytes <= most_bytes - used_);
    };
    bool ended = false;
    while (!is_next() && !ended) {
      if (!terminate)
        changed_.wait(lock);
      else
        changed_.wait_for(lock, kLook);
      ended = terminate && *terminate;
    }
    waiting_.erase(std::ranges::find(waiting_, turn));
    changed_.notify_all();
    ORTM_CHECK(!ended,
               "[terminated] Exiting due to terminate flag being set to true, while the run ",
               "waited for memory");
    used_ += bytes;
    return {this, bytes};
  }

 private:
  void leave(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t arrived_ = 0;
  std::deque<uint64_t> waiting_;  // in the order of their arrival
  int64_t used_ = 0;
};

}  // namespace ortmodule
