#include "kernels/worker_threads.h"

#include <algorithm>
#include <atomic>

namespace ortmodule {
namespace {

std::atomic<int64_t (*)()> counter = nullptr;

}  // namespace

int64_t worker_threads() {
  int64_t (*const count)() = counter.load();
  return count ? std::max<int64_t>(1, count()) : 1;
}

void set_worker_threads(int64_t (*count)()) { counter.store(count); }

}  // namespace ortmodule
