#include "runtime/worker_pool.h"

#include <algorithm>
#include <utility>

namespace ortmodule {
namespace {

thread_local bool in_loop = false;

struct LoopScope {
  LoopScope() { in_loop = true; }
  ~LoopScope() { in_loop = false; }
};

}  // namespace

WorkerPool::WorkerPool(int64_t threads) {
  for (int64_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

WorkerPool::~WorkerPool() {
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
  const int64_t chunks =
      std::min(threads(), (count + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1));
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
    busy_ = static_cast<int64_t>(workers_.size());
    ++generation_;
  }
  begun_.notify_all();
  {
    const LoopScope scope;
    take_chunks();
  }
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
    begun_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    lock.unlock();
    take_chunks();
    lock.lock();
    if (--busy_ == 0) ended_.notify_one();
  }
}

}  // namespace ortmodule
