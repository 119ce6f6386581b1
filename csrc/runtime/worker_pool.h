// Threads for the kernels of a session that runs without torch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// A fixed number of threads, the caller among them. Thread-safe: while the threads work for one
/// caller, others run their loops alone, and so does a loop inside of a loop.
class WorkerPool {
 public:
  /// `threads` >= 1, the caller included.
  explicit WorkerPool(int64_t threads);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  int64_t threads() const { return static_cast<int64_t>(workers_.size()) + 1; }
  /// The pool as kernels see it; false if it has one thread.
  ParallelFor parallel_for();

 private:
  struct Loop {
    const ParallelFor::Body* body = nullptr;
    int64_t count = 0;
    int64_t chunk = 0;
    int64_t chunks = 0;
  };

  void run(int64_t count, int64_t grain, const ParallelFor::Body& body);
  void take_chunks();
  void work();
  /// Ends the threads.
  void stop();

  std::vector<std::thread> workers_;
  std::mutex caller_;  // held by the caller whose loop runs

  std::mutex mutex_;  // guards the next six; atomic ones may be read without it, except that
                      // `loop_` is constant while chunks run
  std::condition_variable begun_;
  std::condition_variable ended_;
  std::atomic<uint64_t> generation_{0};  // counts loops
  std::atomic<int64_t> busy_{0};         // workers that have begun the loop and not finished it
  bool is_open_ = false;                 // workers may begin the loop
  bool stopping_ = false;

  Loop loop_;
  std::atomic<int64_t> next_chunk_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

}  // namespace ortmodule
