// The threads of RunAsync.
#pragma once

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
    static AsyncRuns runs;
    return runs;
  }

  /// Until all have ended; returns at once within one of them.
  static void wait() {
    AsyncRuns* runs = current_;
    if (!runs || is_inside()) return;
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
  AsyncRuns() { current_ = this; }
  ~AsyncRuns() {
    current_ = nullptr;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    // A callback that ends the program cannot wait for its own thread.
    for (std::thread& thread : threads_) is_inside() ? thread.detach() : thread.join();
  }

  static bool& is_inside() {
    static thread_local bool inside = false;
    return inside;
  }

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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ended_ = false;
};

}  // namespace Ort::detail
