#include "runtime/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "runtime/idle_pages.h"

namespace ortmodule {
namespace {

// Chunks for each thread, so that one that is slow or comes late does not hold up the others.
constexpr int64_t kChunks = 2;
constexpr std::chrono::microseconds kSpinTime{30};
constexpr std::chrono::milliseconds kBusyTime{200};

thread_local bool in_loop = false;

/// Waits actively until `is_done`, for a short time.
template <class Condition>
void spin(const Condition& is_done) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 64; ++i) {
      if (is_done()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < end);
}

struct LoopScope {
  LoopScope() { in_loop = true; }
  ~LoopScope() { in_loop = false; }
};

}  // namespace

WorkerPool::WorkerPool(int64_t threads) {
  try {
    for (int64_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(str("[threads] the system must have ", threads,
                    " threads for a session, but found: ", error.code().message(),
                    "; give it fewer (intra_op_num_threads)"));
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

ParallelFor WorkerPool::parallel_for() {
  if (workers_.empty()) return {};
  return {[](void* pool, int64_t count, int64_t grain, const ParallelFor::Body& body) {
            static_cast<WorkerPool*>(pool)->run(count, grain, body);
          },
          this};
}

void WorkerPool::run(int64_t count, int64_t grain, const ParallelFor::Body& body) {
  const int64_t least = std::max<int64_t>(grain, 1);
  const int64_t chunks = std::min(kChunks * threads(), (count + least - 1) / least);
  std::unique_lock caller(caller_, std::defer_lock);
  if (chunks <= 1 || in_loop || !caller.try_lock()) {
    if (count > 0) body(0, count);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    loop_ = {&body, count, (count + chunks - 1) / chunks, chunks};
    next_chunk_ = 0;
    failed_ = false;
    failure_ = nullptr;
    is_open_ = true;
    ++generation_;
  }
  begun_.notify_all();
  {
    const LoopScope scope;
    take_chunks();
  }
  {
    // A worker that has not come yet is not waited for: nothing is left for it.
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  spin([this] { return busy_ == 0; });
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return busy_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WorkerPool::take_chunks() {
  for (int64_t chunk; (chunk = next_chunk_++) < loop_.chunks;) {
    const int64_t begin = chunk * loop_.chunk;
    const int64_t end = std::min(loop_.count, begin + loop_.chunk);
    if (begin >= end || failed_) continue;
    try {
      (*loop_.body)(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }
}

void WorkerPool::work() {
  const LoopScope scope;
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_wanted = [&] { return stopping_ || (is_open_ && generation_ != seen); };
    if (!begun_.wait_for(lock, kBusyTime, is_wanted)) {
      lock.unlock();
      return_unused_stack();
      lock.lock();
      begun_.wait(lock, is_wanted);
    }
    if (stopping_) return;
    seen = generation_;
    ++busy_;
    lock.unlock();
    take_chunks();
    lock.lock();
    if (--busy_ == 0) ended_.notify_one();
    // The next step of a plan often follows soon; waking up would take longer.
    lock.unlock();
    spin([&] { return generation_ != seen; });
    lock.lock();
  }
}

}  // namespace ortmodule
