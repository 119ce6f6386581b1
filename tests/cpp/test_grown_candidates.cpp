// Which candidates of a search later shapes get, and how many plans it takes to find them.
#include <gtest/gtest.h>

#include <vector>

#include "optimizer/memory/grown_candidates.h"

namespace ortmodule {
namespace {

/// A candidate that recomputes `id`: gradients of 100 bytes at its peak, beside bytes that grow.
FrontierPoint candidate(int id, int64_t growing_bytes, double time_us) {
  FrontierPoint point{{{id}, {}, {}}, {100 + growing_bytes}};
  point.figures.time_us = time_us;
  for (size_t g = 0; g < kGrowths.size(); ++g)
    point.figures.grown_peak_bytes[g] =
        100 + static_cast<int64_t>(kGrowths[g] * static_cast<double>(growing_bytes));
  return point;
}

class GrownCandidatesTest : public testing::Test {
 protected:
  GrownCandidatesTest() {
    choice_.frontier = {candidate(0, 100, 130), candidate(1, 140, 121), candidate(2, 160, 119),
                        candidate(3, 200, 100)};
  }
  /// The id that is recomputed in shapes that are twice as large.
  int taken(int64_t budget_bytes, std::vector<int> ready, double error = 1.0) {
    made_.clear();
    OtherShapes shapes{2.0, 1.0, budget_bytes, {}, {}};
    shapes.is_ready = [&](const MemoryDecisions& decisions) {
      return std::ranges::find(ready, decisions.recompute[0]) != ready.end();
    };
    shapes.peak_bytes = [&](const MemoryDecisions& decisions) {
      const int id = decisions.recompute[0];
      if (made_.empty() || made_.back() != id) made_.push_back(id);
      for (const auto* points : {&choice_.frontier, &choice_.grown})
        for (const FrontierPoint& point : *points)
          if (point.decisions == decisions)
            return static_cast<int64_t>(error * grown_peak(point.figures, 2.0));
      return int64_t{0};
    };
    return fastest_grown(choice_, shapes).point->decisions.recompute[0];
  }

  MemoryChoice choice_;
  std::vector<int> made_;  // ids, one for each plan
};

TEST_F(GrownCandidatesTest, OneThatIsLoweredIsTakenUnlessAnotherSavesEnough) {
  EXPECT_EQ(taken(430, {0, 1, 2, 3}), 2);
  EXPECT_EQ(made_, std::vector<int>{2}) << "expectations are right";
  EXPECT_EQ(taken(430, {0, 1}), 1) << "2 saves less than 2 %";
  EXPECT_EQ(made_, std::vector<int>{1});
  EXPECT_EQ(taken(430, {0}), 2) << "it saves 8 %";
  EXPECT_EQ(taken(1000, {0, 1, 2}), 3);
}

TEST_F(GrownCandidatesTest, OneThatIsNotLoweredIsTakenIfNoOtherFits) {
  EXPECT_EQ(taken(310, {1, 2, 3}), 0);
  EXPECT_EQ(taken(430, {3}), 2);
  EXPECT_EQ(taken(430, {}), 2);
}

TEST_F(GrownCandidatesTest, OneThatSavesTimeButDoesNotFitIsNotTaken) {
  EXPECT_EQ(taken(430, {0}, 1.1), 1) << "the peak of 2 is 462";
  EXPECT_EQ(taken(430, {0, 1, 2, 3}, 1.1), 1);
}

TEST_F(GrownCandidatesTest, OneWithALowPeakInLargerShapesAloneIsACandidate) {
  // In the shapes of the search it has the peak of another one, since gradients dominate.
  choice_.grown = {candidate(4, 20, 150)};
  EXPECT_EQ(taken(200, {0, 1, 2, 3, 4}), 4);
  EXPECT_EQ(taken(310, {0, 1, 2, 3, 4}), 0) << "it is slower";
}

TEST_F(GrownCandidatesTest, TheLowestPeakIsTakenIfNothingFits) {
  EXPECT_EQ(taken(50, {0, 1, 2, 3}), 0);
}

TEST_F(GrownCandidatesTest, PeaksBetweenAndBeyondTheKnownGrowthsAreLinear) {
  const FrontierPoint point = candidate(0, 800, 1);
  for (double growth : {0.0625, 0.125, 0.3, 1.0, 3.0, 16.0, 40.0})
    EXPECT_DOUBLE_EQ(grown_peak(point.figures, growth), 100 + 800 * growth) << growth;
}

}  // namespace
}  // namespace ortmodule
