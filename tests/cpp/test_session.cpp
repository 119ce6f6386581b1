// A session over shapes: which plans it makes, shares and gives up.
#include <gtest/gtest.h>

#include <thread>

#include "session.h"
#include "test_session_piece.h"

namespace ortmodule {
namespace {

SessionOptions at_level(int level) {
  SessionOptions options;
  options.memory.level = level;
  return options;
}

TEST(Session, StagesFollowEachOther) {
  const Session session(rows_piece(), {});
  EXPECT_EQ(session.exported_graph().node_count(), 16u);
  EXPECT_GT(session.joint_graph().node_count(), session.forward_graph().node_count());
  EXPECT_EQ(session.differentiable_outputs(), std::vector<bool>{true});
  EXPECT_GT(session.lowered()->steps.size(), session.lowered()->forward_steps);
  EXPECT_EQ(session.times().plans, 0u);
}

TEST(Session, InferenceHasNoBackward) {
  SessionOptions options;
  options.optimizer.training = false;
  Session session(rows_piece(), options);
  EXPECT_EQ(session.lowered()->steps.size(), session.lowered()->forward_steps);
  EXPECT_EQ(session.differentiable_outputs(), std::vector<bool>{false});
  session.plan_for(RowsCall(4));
  EXPECT_EQ(session.memory()->choice(), nullptr);
}

TEST(Session, PlansOnceForEachSignature) {
  Session session(rows_piece(), {});
  const auto small = session.plan_for(RowsCall(4));
  EXPECT_EQ(session.plan_for(RowsCall(4)), small);
  EXPECT_EQ(session.plan_for(RowsCall(4, 9)), small) << "plans do not depend on the counter";
  const auto large = session.plan_for(RowsCall(6));
  EXPECT_NE(large, small);
  EXPECT_NE(session.plan_for(RowsCall(4, 0, 20)), small);
  EXPECT_EQ(session.plan_for(RowsCall(4)), small);
  EXPECT_EQ(session.times().plans, 3u);
}

TEST(Session, AnOutdatedPlanIsMadeAnew) {
  Session session(rows_piece(), at_level(1));
  const auto first = session.plan_for(RowsCall(4));
  first->outdated = true;
  const auto second = session.plan_for(RowsCall(4));
  EXPECT_NE(second, first);
  EXPECT_EQ(session.plan_for(RowsCall(4)), second);
}

TEST(Session, NoPlanIsMadeWhereNoneCanBe) {
  SessionOptions options;
  bool refuses = false;
  options.before_plan = [&] { ORTM_CHECK(!refuses, "no plan now"); };
  Session session(rows_piece(), options);
  const auto known = session.plan_for(RowsCall(4));
  refuses = true;
  EXPECT_EQ(session.plan_for(RowsCall(4)), known);
  EXPECT_THROW(session.plan_for(RowsCall(5)), Error);
  EXPECT_THROW(session.backward_program(*known, {true}, true), Error);
  EXPECT_EQ(&session.backward_program(*known, {true}, false), &known->program);
}

TEST(Session, AChoiceThatIsHeldOutlivesTheNextOne) {
  Session session(rows_piece(), at_level(1));
  session.plan_for(RowsCall(8));
  const auto held = session.memory()->choice();
  ASSERT_TRUE(held);
  const int64_t before = held->before.peak_bytes;
  session.plan_for(RowsCall(800));  // outgrows it
  EXPECT_EQ(held->before.peak_bytes, before);
  EXPECT_GT(session.memory()->choice()->before.peak_bytes, 50 * before);
}

TEST(Session, ChoicesAreReadWhileOtherShapesArePlanned) {
  Session session(rows_piece(), at_level(1));
  session.plan_for(RowsCall(2));
  std::thread planning([&] {
    for (int64_t rows = 4; rows < 10'000; rows *= 3) session.plan_for(RowsCall(rows));
  });
  int64_t last = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto choice = session.memory()->choice();
    EXPECT_GE(choice->before.peak_bytes, last);
    EXPECT_GE(choice->before.peak_bytes, choice->after.peak_bytes);
    last = choice->before.peak_bytes;
  }
  planning.join();
}

}  // namespace
}  // namespace ortmodule
