// Memory of runs: what is kept between them, for how long, and who has to wait.
#include <gtest/gtest.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "inference/admission.h"
#include "runtime/host_memory.h"
#include "runtime/idle_clock.h"
#include "runtime/idle_pages.h"

namespace ortmodule::testing {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMiB = 1 << 20;

/// Waits for a condition that the idle clock brings about.
template <class Condition>
bool eventually(const Condition& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(10));
  return condition();
}

TEST(HostMemory, ReturnsBlocksToTheSystem) {
  HostMemory memory;
  Buffer small = memory.allocate(100), large = memory.allocate(5 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % 64, 0u);
  std::memset(small.data(), 1, 100);
  EXPECT_EQ(memory.held_bytes(), 100 + 5 * kMiB);
  EXPECT_GE(memory.mapped_bytes(), 5 * kMiB);
  large = Buffer();
  EXPECT_EQ(memory.held_bytes(), 100);
  EXPECT_EQ(memory.peak_bytes(), 100 + 5 * kMiB);
  EXPECT_EQ(memory.mapped_bytes(), 0);
  EXPECT_EQ(memory.kept_bytes(), 0);
}

#ifdef __GLIBC__
TEST(HostMemory, MappedBlocksTakeNothingOfTheHeap) {
  HostMemory memory;
  const Buffer first = memory.allocate(kMiB);
  const size_t before = mallinfo2().uordblks;
  const Buffer second = memory.allocate(kMiB);
  EXPECT_EQ(mallinfo2().uordblks, before);
}
#endif

TEST(HostMemory, KeepsBlocksWhileTheyAreUsed) {
  HostMemory memory(HostMemory::Keep::WhileUsed);
  void* first = memory.allocate_block(4 * kMiB).data();
  EXPECT_EQ(memory.kept_bytes(), 4 * kMiB);
  EXPECT_EQ(memory.allocate_block(4 * kMiB).data(), first);
  EXPECT_EQ(memory.allocate_block(kMiB).data(), first) << "a run's block may be larger than needed";
  EXPECT_NE(memory.allocate(kMiB).data(), first) << "other memory may not";
  EXPECT_LE(memory.mapped_bytes(), 4 * kMiB) << "keeping raises no peak";
  memory.return_kept();
  EXPECT_EQ(memory.mapped_bytes(), 0);
  memory.allocate_block(4 * kMiB);
  EXPECT_TRUE(eventually([&] { return memory.mapped_bytes() == 0; }));
}

// The outputs of a run that are the feeds of the next one, each a little longer.
TEST(HostMemory, KeptBlocksGrow) {
  HostMemory memory(HostMemory::Keep::WhileUsed);
  constexpr int64_t kStep = 8 << 10, kCount = 4;
  std::vector<Buffer> fed, given;
  int reused = 0;
  for (int64_t run = 0; run < 12; ++run) {
    const int64_t bytes = kMiB + run * kStep;
    for (int64_t i = 0; i < kCount; ++i) {
      given.push_back(memory.allocate(bytes));
      auto* mark = static_cast<int64_t*>(given.back().data());
      reused += *mark == 7;  // a new mapping is zero
      *mark = 7;
    }
    EXPECT_LE(memory.mapped_bytes(), 2 * kCount * bytes);
    fed = std::move(given);
    given.clear();
  }
  EXPECT_GE(reused, 10 * kCount);
  memory.limit_kept(kCount * kMiB);
  given.push_back(memory.allocate(kMiB + 12 * kStep));
  EXPECT_EQ(memory.kept_bytes(), 0);
}

TEST(HostMemory, TheBlockOfARunGrowsFurther) {
  HostMemory memory(HostMemory::Keep::WhileUsed);
  *static_cast<int64_t*>(memory.allocate_block(kMiB).data()) = 7;
  EXPECT_EQ(*static_cast<int64_t*>(memory.allocate_block(2 * kMiB).data()), 7);
  EXPECT_EQ(*static_cast<int64_t*>(memory.allocate(3 * kMiB).data()), 0) << "other memory does not";
}

TEST(HostMemory, DiscardsWholePagesOnly) {
  HostMemory memory;
  const Buffer block = memory.allocate(4 * kMiB);
  auto* bytes = static_cast<char*>(block.data());
  std::memset(bytes, 7, 4 * kMiB);
  HostMemory::discard(bytes + 100, kMiB);
  EXPECT_EQ(bytes[100], 7);
  EXPECT_EQ(bytes[kMiB / 2], 0);
  EXPECT_EQ(bytes[kMiB + 99], 7);
  HostMemory::discard(bytes + 2 * kMiB + 1, 10);
  EXPECT_EQ(bytes[2 * kMiB + 1], 7);
}

TEST(HostMemory, ReplacesSmallPagesByHugeOnes) {
  HostMemory memory(HostMemory::Keep::Nothing, HostMemory::Pages::Small);
  const Buffer block = memory.allocate(5 * kMiB + 100);
  auto* bytes = static_cast<char*>(block.data());
  for (int64_t i = 0; i < block.bytes(); ++i) bytes[i] = static_cast<char>(i / 1000);
  HostMemory::use_huge_pages(block);
  for (int64_t i = 0; i < block.bytes(); ++i) ASSERT_EQ(bytes[i], static_cast<char>(i / 1000));
}

TEST(HostMemory, HoldsAndKeepsNoMoreThanWasHeldAtOnce) {
  HostMemory memory(HostMemory::Keep::WhileUsed);
  for (int64_t mib : {1, 8, 2, 8, 5, 16, 3}) {
    const Buffer block = memory.allocate_block(mib * kMiB);
    const Buffer output = memory.allocate(mib * kMiB);
    EXPECT_LE(memory.mapped_bytes(), std::max(memory.peak_bytes(), 2 * mib * kMiB));
  }
  EXPECT_LE(memory.mapped_bytes(), memory.peak_bytes());
  memory.limit_kept(kMiB);
  memory.allocate_block(16 * kMiB);
  EXPECT_LE(memory.kept_bytes(), 16 * kMiB);
  memory.return_kept();
  memory.allocate_block(16 * kMiB);
  EXPECT_EQ(memory.kept_bytes(), 0) << "beyond the limit nothing is kept";
}

TEST(HostMemory, BlocksOutliveTheirAllocator) {
  Buffer kept, small;
  {
    HostMemory memory(HostMemory::Keep::WhileUsed);
    kept = memory.allocate_block(2 * kMiB);
    small = memory.allocate(10);
  }
  std::memset(kept.data(), 1, 2 * kMiB);
  std::memset(small.data(), 1, 10);
}

TEST(HostMemory, SaysHowManyBytesTheSystemLacks) {
  HostMemory memory;
  EXPECT_THROW(memory.allocate(int64_t{1} << 55), Error);
  EXPECT_EQ(memory.held_bytes(), 0);
  EXPECT_EQ(memory.mapped_bytes(), 0);
}

TEST(HostMemory, ThreadsShareIt) {
  HostMemory memory(HostMemory::Keep::WhileUsed);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&memory, t] {
      for (int i = 0; i < 200; ++i) {
        const Buffer block = memory.allocate_block((1 + (i + t) % 5) * 100'000);
        std::memset(block.data(), t, 100'000);
        const Buffer small = memory.allocate(50 + i);
        if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(30));
        ASSERT_EQ(static_cast<char*>(block.data())[99'999], static_cast<char>(t));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.held_bytes(), 0);
  EXPECT_TRUE(eventually([&] { return memory.mapped_bytes() == 0; }));
}

TEST(IdleClock, RunsOnlyWhileSomethingIsKept) {
  struct Keeper : IdleKeeper {
    std::atomic<int> ticks{0};
    bool tick() override { return ++ticks < 3; }
  };
  const auto keeper = std::make_shared<Keeper>();
  ASSERT_TRUE(tick_until_idle(keeper));
  EXPECT_TRUE(idle_clock_runs());
  EXPECT_TRUE(eventually([&] { return keeper->ticks == 3; }));
  EXPECT_TRUE(eventually([&] { return !idle_clock_runs(); }));
  EXPECT_EQ(keeper->ticks, 3);
  tick_until_idle(std::make_shared<Keeper>());  // dies before it is called
  note_freed_heap(64 * kMiB);
  EXPECT_TRUE(eventually([&] { return !idle_clock_runs(); }));
}

// What a thread freed last stays in its cache, and in the heap, until it ends.
TEST(IdleClock, EndsItsThreadWhenThatHasFreedMuch) {
  struct Keeper : IdleKeeper {
    std::vector<std::thread::id> threads;
    std::atomic<size_t> ticks{0};
    bool tick() override {
      threads.push_back(std::this_thread::get_id());
      if (ticks == 1) note_freed_heap(64 * kMiB);
      return ++ticks < 4;
    }
  };
  const auto keeper = std::make_shared<Keeper>();
  ASSERT_TRUE(tick_until_idle(keeper));
  EXPECT_TRUE(eventually([&] { return keeper->ticks == 4 && !idle_clock_runs(); }));
  EXPECT_EQ(keeper->threads[1], keeper->threads[0]);
  EXPECT_NE(keeper->threads[2], keeper->threads[1]);
  EXPECT_EQ(keeper->threads[3], keeper->threads[2]);
}

TEST(IdlePages, ComeBackWhenTheyAreUsed) {
  int kept = 7;
  forget_code_pages();
  std::thread([&] {
    volatile char deep[200'000];
    for (volatile char& byte : deep) byte = 1;
    return_unused_stack();
    kept += deep[199'999];
  }).join();
  EXPECT_EQ(kept, 8);
}

TEST(Admission, AdmitsInOrderAndWithinTheLimit) {
  Admission admission;
  std::vector<int> order;
  std::thread large, small;
  {
    const Admission::Pass running = admission.admit(60, 100);
    large = std::thread([&] {
      const Admission::Pass pass = admission.admit(80, 100);
      order.push_back(80);
    });
    std::this_thread::sleep_for(milliseconds(50));
    small = std::thread([&] {  // would fit now, but came later
      const Admission::Pass pass = admission.admit(30, 100);
      order.push_back(30);
    });
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(order.empty());
  }
  large.join();
  small.join();
  EXPECT_EQ(order, (std::vector<int>{80, 30}));
  const Admission::Pass alone = admission.admit(200, 100);  // the caller has refused it, or not
}

TEST(Admission, ARunThatIsTerminatedLeavesTheQueue) {
  Admission admission;
  std::atomic<bool> terminate = false, admitted = false;
  std::thread ended, next;
  {
    const Admission::Pass running = admission.admit(60, 100);
    std::atomic<bool> refused = false;
    ended = std::thread([&] {
      EXPECT_THROW(admission.admit(80, 100, &terminate), Error);
      refused = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    next = std::thread([&] {
      const Admission::Pass pass = admission.admit(30, 100);
      admitted = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(refused || admitted);
    terminate = true;
    ended.join();
    next.join();  // the first still runs
    EXPECT_TRUE(refused && admitted);
  }
}

TEST(Admission, ManyThreadsNeverExceedTheLimit) {
  Admission admission;
  std::atomic<int64_t> used{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const int64_t bytes = 1 + (t * 31 + i * 17) % 100;
        const Admission::Pass pass = admission.admit(bytes, 100);
        const int64_t now = used += bytes;
        for (int64_t known = most; known < now && !most.compare_exchange_weak(known, now);) {
        }
        used -= bytes;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 100);
}

}  // namespace
}  // namespace ortmodule::testing
