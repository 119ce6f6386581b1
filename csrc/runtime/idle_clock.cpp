#include "runtime/idle_clock.h"

#include <pthread.h>
#include <signal.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/idle_pages.h"

namespace ortmodule {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int64_t kWorthTrimming = 1 << 20;

// Whether this thread has freed much since it was last asked.
thread_local bool freed_much = false;

struct Clock {
  std::mutex ticking;  // held while keepers are called; locked before `list`
  std::mutex list;     // guards `watched`, and `runs` when it changes
  std::vector<std::weak_ptr<IdleKeeper>> watched;
  std::atomic<bool> runs{false};
};

void before_fork();
void in_parent();
void in_child();

// Never destroyed: the thread may still run while the process ends.
Clock& the_clock() {
  static Clock& clock = *[] {
    pthread_atfork(before_fork, in_parent, in_child);
    return new Clock;
  }();
  return clock;
}

// No keeper is called during fork(), so that none of its locks stays locked in the child.
void before_fork() {
  the_clock().ticking.lock();
  the_clock().list.lock();
}

void in_parent() {
  the_clock().list.unlock();
  the_clock().ticking.unlock();
}

void in_child() {
  the_clock().runs = false;  // the child has no such thread
  in_parent();
}

bool start_thread();

void* work(void*) {
  Clock& clock = the_clock();
  while (true) {
    std::this_thread::sleep_for(kIdleTick);
    std::vector<std::weak_ptr<IdleKeeper>> called;
    {
      const std::lock_guard lock(clock.list);
      called.swap(clock.watched);
    }
    {
      const std::lock_guard lock(clock.ticking);
      std::erase_if(called, [](const std::weak_ptr<IdleKeeper>& weak) {
        const std::shared_ptr<IdleKeeper> keeper = weak.lock();
        return !keeper || !keeper->tick();
      });
    }
    const std::lock_guard lock(clock.list);
    for (std::weak_ptr<IdleKeeper>& keeper : called) clock.watched.push_back(std::move(keeper));
    if (clock.watched.empty()) {
      clock.runs = false;
      return nullptr;
    }
    // The C library keeps what a thread has freed last for it, pages of the heap with it, until the
    // thread ends.
    if (std::exchange(freed_much, false) && start_thread()) return nullptr;
  }
}

bool start_thread() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;  // signals are for the threads of the program
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, work, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return started;
}

// Gives freed memory of the C library's heap back when no more is freed.
class HeapTrimmer : public IdleKeeper {
 public:
  /// Whether it must be given to the clock.
  bool note(int64_t bytes) {
    quiet_ = false;
    return (freed_ += bytes) >= kWorthTrimming && (!watched_.exchange(true) || !idle_clock_runs());
  }

  bool tick() override {
    if (!quiet_.exchange(true)) return true;
    watched_ = false;
    freed_ = 0;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    forget_code_pages();
    return false;
  }

 private:
  std::atomic<int64_t> freed_{0};
  std::atomic<bool> quiet_{false};
  std::atomic<bool> watched_{false};
};

}  // namespace

bool tick_until_idle(std::weak_ptr<IdleKeeper> keeper) {
  Clock& clock = the_clock();
  const std::lock_guard lock(clock.list);
  if (!clock.runs) {
    if (!start_thread()) return false;
    clock.runs = true;
  }
  clock.watched.push_back(std::move(keeper));
  return true;
}

bool idle_clock_runs() { return the_clock().runs; }

void note_freed_heap(int64_t bytes) {
  freed_much = true;
  static const auto& trimmer = *new std::shared_ptr<HeapTrimmer>(std::make_shared<HeapTrimmer>());
  if (trimmer->note(bytes)) tick_until_idle(trimmer);
}

}  // namespace ortmodule
