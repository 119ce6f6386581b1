// Which plans are kept.
#include <gtest/gtest.h>

#include "session/plan_cache.h"

namespace ortmodule {
namespace {

using Key = std::vector<int>;
using Cache = PlanCache<Key, int>;

TEST(PlanCache, FindsWhatWasAdded) {
  Cache cache;
  EXPECT_EQ(cache.find({1, 2}), nullptr);
  cache.add({1, 2}, std::make_shared<int>(12), 2);
  cache.add({1}, std::make_shared<int>(1), 2);
  EXPECT_EQ(*cache.find({1, 2}), 12);
  EXPECT_EQ(*cache.find({1}), 1);
  EXPECT_EQ(cache.find({}), nullptr);
}

TEST(PlanCache, TheLeastRecentlyUsedGivesWay) {
  Cache cache;
  for (int i = 0; i < 3; ++i) cache.add({i}, std::make_shared<int>(i), 3);
  EXPECT_NE(cache.find({0}), nullptr);  // now 1 is the oldest
  cache.add({3}, std::make_shared<int>(3), 3);
  EXPECT_EQ(cache.size(), 3u);
  EXPECT_EQ(cache.find({1}), nullptr);
  for (int i : {0, 2, 3}) EXPECT_EQ(*cache.find({i}), i);
}

TEST(PlanCache, TheLatestIsTheOneFoundOrAddedLast) {
  Cache cache;
  const auto any = [](const Key&) { return true; };
  EXPECT_EQ(cache.latest(any), nullptr);
  for (int i = 0; i < 3; ++i) cache.add({i}, std::make_shared<int>(i), 3);
  EXPECT_EQ(*cache.latest(any), 2);
  EXPECT_NE(cache.find({0}), nullptr);
  EXPECT_EQ(*cache.latest([](const Key& key) { return key == Key{0}; }), 0);
  EXPECT_EQ(cache.latest([](const Key& key) { return key == Key{2}; }), nullptr);
  cache.clear();
  EXPECT_EQ(cache.latest(any), nullptr);
}

TEST(PlanCache, AnEntryInUseOutlivesItsPlace) {
  Cache cache;
  cache.add({0}, std::make_shared<int>(7), 1);
  const std::shared_ptr<int> held = cache.find({0});
  cache.add({1}, std::make_shared<int>(8), 1);
  EXPECT_EQ(*held, 7);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(PlanCache, ErasedAndClearedEntriesCanBeAddedAgain) {
  Cache cache;
  cache.add({0}, std::make_shared<int>(1), 2);
  cache.erase({0});
  cache.erase({5});
  EXPECT_EQ(cache.find({0}), nullptr);
  cache.add({0}, std::make_shared<int>(2), 2);
  EXPECT_EQ(*cache.find({0}), 2);
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  cache.add({0}, std::make_shared<int>(3), 2);
  EXPECT_EQ(*cache.find({0}), 3);
}

TEST(PlanCache, TheLastEntryStaysAndLargerPlansMakeRoom) {
  Cache cache;
  for (int i = 0; i < 4; ++i) cache.add({i}, std::make_shared<int>(i), 4);
  cache.add({4}, std::make_shared<int>(4), 2);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(*cache.find({3}), 3);
  cache.add({5}, std::make_shared<int>(5), 0);
  EXPECT_EQ(*cache.find({5}), 5);
}

TEST(PlanCache, SmallPlansAreKeptInLargerNumber) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  EXPECT_EQ(plans_within(kBytes, 0, 64), 1024u);
  EXPECT_EQ(plans_within(kBytes, 123'000, 64), 545u);
  EXPECT_EQ(plans_within(kBytes, 717'000, 64), 93u);
  EXPECT_EQ(plans_within(kBytes, kBytes, 64), 64u);
  EXPECT_EQ(plans_within(kBytes, 2 * kBytes, 1), 1u);
}

TEST(PlanCache, ShrinksToTheMostRecentEntriesThatFit) {
  Cache cache;
  for (int i = 0; i < 4; ++i) cache.add({i}, std::make_shared<int>(10 * i), 4);
  cache.find({1});
  const auto bytes_of = [](int entry) { return int64_t{entry}; };
  EXPECT_EQ(cache.shrink(45, bytes_of), 40) << "the entries 10 and 30";
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.find({2}), nullptr);
  EXPECT_EQ(*cache.find({3}), 30);
  EXPECT_EQ(cache.shrink(29, bytes_of), 0);
  EXPECT_EQ(cache.size(), 0u);
}

}  // namespace
}  // namespace ortmodule
