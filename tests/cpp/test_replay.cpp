// Bytes over the steps of a plan written by hand, in each mode.
#include <gtest/gtest.h>

#include "plan/replay.h"

namespace ortmodule {
namespace {

using Bytes = std::vector<int64_t>;

/// Two steps forward, two backward in a range each, and two gradients.
Plan small_plan() {
  Plan plan;
  plan.steps.resize(4);
  plan.forward_steps = 2;
  plan.ranges = 2;
  plan.steps[2].library_bytes = 4;
  plan.steps[3].range = 1;
  plan.buffers = {{BufferKind::Argument, 0, 1000, 0, 3},  {BufferKind::Saved, 0, 10, 0, 2},
                  {BufferKind::ForwardArena, 0, 5, 0, 1}, {BufferKind::Gradient, 0, 20, 2, 3},
                  {BufferKind::Gradient, 1, 7, 3, 3},     {BufferKind::BackwardArena, 0, 3, 3, 3}};
  for (size_t i : {0, 1}) {
    PlannedStorage storage;
    storage.buffer = BufferId(3 + i);
    PlannedTensor tensor;
    tensor.storage = plan.storages.add(storage);
    plan.gradients.push_back({.input = i, .tensor = plan.tensors.add(tensor), .range = i});
  }
  return plan;
}

TEST(Replay, OfARunThatGoesBackOnce) {
  const Plan plan = small_plan();
  EXPECT_EQ(live_bytes(plan, ReplayMode::Once), Bytes({15, 15, 30, 30}));
  const ReplayFigures figures = replay(plan, ReplayMode::Once);
  EXPECT_EQ(figures.peak_bytes, 34);  // what the library allocates is on top
  EXPECT_EQ(figures.peak_step, 2);
  EXPECT_EQ(figures.forward_peak_bytes, 15);
  EXPECT_EQ(saved_bytes(plan), 10);
  EXPECT_EQ(gradient_bytes(plan), 27);
}

TEST(Replay, KeepsSavedSegmentsForAnotherPass) {
  EXPECT_EQ(live_bytes(small_plan(), ReplayMode::RetainGraph), Bytes({15, 15, 30, 40}));
  EXPECT_EQ(replay(small_plan(), ReplayMode::RetainGraph).peak_step, 3);
}

TEST(Replay, FreesGradientsThatWereAddedToOthers) {
  EXPECT_EQ(live_bytes(small_plan(), ReplayMode::Accumulate), Bytes({15, 15, 30, 10}));
  Plan one_range = small_plan();
  one_range.ranges = 1;
  one_range.steps[3].range = one_range.gradients[1].range = 0;
  EXPECT_EQ(live_bytes(one_range, ReplayMode::Accumulate), Bytes({15, 15, 30, 30}));
}

TEST(Replay, LeavesGradientsOut) {
  EXPECT_EQ(live_bytes(small_plan(), ReplayMode::NoGradients), Bytes({15, 15, 10, 3}));
}

TEST(Replay, OfAPlanWithoutSteps) {
  EXPECT_TRUE(live_bytes(Plan(), ReplayMode::Once).empty());
  EXPECT_EQ(replay(Plan(), ReplayMode::Accumulate).peak_bytes, 0);
}

}  // namespace
}  // namespace ortmodule
