// Keeps the runs of a session within a limit of memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

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
  Pass admit(int64_t bytes, int64_t most_bytes) {
    std::unique_lock lock(mutex_);
    const uint64_t turn = arrived_++;
    changed_.wait(lock,
                  [&] { return turn == admitted_ && (used_ == 0 || bytes <= most_bytes - used_); });
    ++admitted_;
    used_ += bytes;
    changed_.notify_all();
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
  uint64_t admitted_ = 0;
  int64_t used_ = 0;
};

}  // namespace ortmodule
