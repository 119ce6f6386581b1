// The threads of RunAsync.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace Ort::detail {

/// Runs functions in threads that all sessions of the program share. Those that were added have
/// ended before an environment does, and before the program destroys what is static.
class AsyncRuns {
 public:
  static AsyncRuns& of_program() {
    static const Owner owner;
    return *owner.runs;
  }

  /// Until all have ended; returns at once within one of them, and in a child of a fork.
  static void wait() {
    AsyncRuns* runs = current_;
    if (!runs || is_inside() || runs->is_copy()) return;
    std::unique_lock lock(runs->mutex_);
    runs->changed_.wait(
        lock, [&] { return runs->waiting_.empty() && runs->idle_ == runs->threads_.size(); });
  }

  /// `run` must not throw.
  void add(std::function<void()> run) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(run));
    const size_t most = std::max(1U, std::thread::hardware_concurrency());
    if (waiting_.size() > idle_ && threads_.size() < most)
      threads_.emplace_back([this] { work(); });
    changed_.notify_all();
  }

  AsyncRuns(const AsyncRuns&) = delete;
  AsyncRuns& operator=(const AsyncRuns&) = delete;

 private:
  // Ends the threads with the program. A callback that ends it cannot wait for its own thread, and
  // a child of a fork has none, for which a condition variable would wait: both leave all as it is.
  struct Owner {
    AsyncRuns* runs = new AsyncRuns;
    ~Owner() {
      current_ = nullptr;
      if (!is_inside() && !runs->is_copy()) delete runs;
    }
  };

  AsyncRuns() { current_ = this; }
  ~AsyncRuns() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  static bool& is_inside() {
    static thread_local bool inside = false;
    return inside;
  }

  bool is_copy() const { return getpid() != process_; }

  void work() {
    is_inside() = true;
    std::unique_lock lock(mutex_);
    ++idle_;
    while (true) {
      changed_.notify_all();
      changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::function<void()> run = std::move(waiting_.front());
      waiting_.pop_front();
      --idle_;
      lock.unlock();
      run();
      run = nullptr;  // with what it holds
      lock.lock();
      ++idle_;
    }
  }

  inline static std::atomic<AsyncRuns*> current_ = nullptr;  // from the first run to the end

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ended_ = false;
};

}  // namespace Ort::detail
