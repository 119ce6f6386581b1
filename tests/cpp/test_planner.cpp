// Which plans are remembered, and for how long.
#include <gtest/gtest.h>

#include "gradient/build_gradient.h"
#include "session/planner.h"
#include "session/symbol_binder.h"
#include "test_session_piece.h"

namespace ortmodule {
namespace {

class PlannerTest : public testing::Test {
 protected:
  std::shared_ptr<PlanEntry> latest(const CallShapes& call) const {
    return planner_.latest([&](const PlanKey& key) { return binder_.is_key_of(call, key); });
  }
  /// The softmax of that name is recomputed.
  MemoryDecisions without(std::string_view name) const {
    for (const Value* value : joint_->values())
      if (value->name == name) return {.recompute = {value->id()}, .keep = {}};
    ADD_FAILURE() << "no value is called " << name;
    return {};
  }

  const ExportedPiece piece_ = rows_piece();
  const std::unique_ptr<Graph> joint_ = build_gradient(*piece_.graph);
  const SymbolBinder binder_{piece_, piece_.graph->inputs().size(), *joint_};
  const SessionOptions options_;
  StageTimes times_;
  Planner planner_{*joint_, std::make_shared<Lowered>(lower(*joint_, Device::CPU)), options_,
                   times_};
};

TEST_F(PlannerTest, EntriesAreFoundByTheirKeys) {
  EXPECT_EQ(latest(RowsCall(4)), nullptr);
  const auto four = planner_.make({}, binder_.signature_of(RowsCall(4)));
  const auto five = planner_.make({}, binder_.signature_of(RowsCall(5)));
  EXPECT_EQ(latest(RowsCall(5)), five);
  EXPECT_EQ(latest(RowsCall(4)), nullptr);
  EXPECT_EQ(planner_.find(binder_.key_of(RowsCall(4))), four);
  EXPECT_EQ(latest(RowsCall(4)), four);
  EXPECT_EQ(times_.plans, 2u);
  planner_.erase(binder_.key_of(RowsCall(4)));
  EXPECT_EQ(planner_.find(binder_.key_of(RowsCall(4))), nullptr);
  planner_.forget_all();
  EXPECT_EQ(latest(RowsCall(5)), nullptr);
}

TEST_F(PlannerTest, AnOutdatedEntryIsFoundButIsNotTheLatest) {
  const auto entry = planner_.make({}, binder_.signature_of(RowsCall(4)));
  entry->outdated = true;
  EXPECT_EQ(latest(RowsCall(4)), nullptr);
  EXPECT_EQ(planner_.find(binder_.key_of(RowsCall(4))), entry);
}

TEST_F(PlannerTest, TheLastComparedPlansAreRememberedUntilOneIsTaken) {
  const Signature four = binder_.signature_of(RowsCall(4));
  const auto kept = planner_.compared({}, four);
  EXPECT_EQ(planner_.compared({}, four), kept);
  EXPECT_NE(planner_.compared({}, binder_.signature_of(RowsCall(5))), kept);
  const auto dropped = planner_.compared(without("s1"), four);
  EXPECT_LT(dropped->saved_bytes, kept->saved_bytes);
  EXPECT_EQ(planner_.compared({}, four), kept);
  planner_.forget_compared();
  const auto again = planner_.compared({}, four);
  EXPECT_NE(again, kept);
  EXPECT_EQ(planner_.make({}, four)->program.plan, again);
  EXPECT_NE(planner_.compared({}, four), again);
  EXPECT_NE(planner_.shown({}, four), planner_.shown({}, four));
}

TEST_F(PlannerTest, BackwardVariantsAreMadeOnce) {
  const auto entry = planner_.make({}, binder_.signature_of(RowsCall(4)));
  EXPECT_EQ(&planner_.backward_program(*entry, {true}, true, false), &entry->program);
  const Program& retained = planner_.backward_program(*entry, {true}, true, true);
  const Program& absent = planner_.backward_program(*entry, {false}, false, false);
  EXPECT_NE(&retained, &entry->program);
  EXPECT_NE(&absent, &retained);
  EXPECT_EQ(&planner_.backward_program(*entry, {true}, true, true), &retained);
  EXPECT_EQ(absent.plan->steps.size(), static_cast<size_t>(entry->program.plan->forward_steps))
      << "no gradient arrives, so that backward has nothing to do";
}

}  // namespace
}  // namespace ortmodule
