// What is recomputed from shape to shape, within budgets that are shared and change.
#include <gtest/gtest.h>

#include "session.h"
#include "test_session_piece.h"

namespace ortmodule {
namespace {

constexpr int64_t kRows = 64;

SessionOptions with_budget(int64_t bytes, bool strict = false) {
  SessionOptions options;
  options.memory.budget_bytes = bytes;
  options.memory.strict = strict;
  return options;
}

/// The peaks of the piece in its first shape without a budget, and the least one.
struct Peaks {
  int64_t most = 0, least = 0;
  Peaks() {
    Session session(rows_piece(), with_budget(int64_t{1} << 40));
    most = session.plan_for(RowsCall(kRows))->program.plan->peak_bytes;
    least = session.memory()->choice()->minimum_bytes;
  }
};

class MemoryPolicyTest : public testing::Test {
 protected:
  static int64_t peak(Session& session, int64_t rows) {
    return session.plan_for(RowsCall(rows))->program.plan->peak_bytes;
  }
  const Peaks peaks_;
};

TEST_F(MemoryPolicyTest, ABudgetHoldsInLaterShapes) {
  ASSERT_LT(peaks_.least, peaks_.most);
  const int64_t budget = (peaks_.least + peaks_.most) / 2;
  Session session(rows_piece(), with_budget(budget));
  for (int64_t rows : {kRows, kRows / 2, kRows + 1, kRows, int64_t{1}})
    EXPECT_LE(peak(session, rows), budget) << rows;
  EXPECT_TRUE(session.plan_for(RowsCall(1))->decisions.empty()) << "all of it fits";
  EXPECT_FALSE(session.memory()->take_shortfall());
}

TEST_F(MemoryPolicyTest, AFirstShapeThatDoesNotFitIsAnErrorAndALaterOneAWarning) {
  Session small(rows_piece(), with_budget(peaks_.least - 1));
  EXPECT_THROW(peak(small, kRows), Error);
  Session later(rows_piece(), with_budget(peaks_.least));
  peak(later, kRows);
  peak(later, 2 * kRows);
  EXPECT_TRUE(later.memory()->take_shortfall());
  EXPECT_FALSE(later.memory()->take_shortfall()) << "it was taken";
  Session strict(rows_piece(), with_budget(peaks_.least, true));
  peak(strict, kRows);
  EXPECT_THROW(peak(strict, 2 * kRows), Error);
}

TEST_F(MemoryPolicyTest, ShapesThatNothingFitsAreSearchedOnceForAll) {
  Session session(rows_piece(), with_budget(peaks_.least));
  peak(session, kRows);
  peak(session, 2 * kRows);
  const int searches = session.memory()->searches();
  const int64_t first = peak(session, 3 * kRows);
  EXPECT_EQ(session.memory()->searches(), searches);
  EXPECT_EQ(session.memory()->take_shortfall()->step_bytes, first);
  Session other(rows_piece(), with_budget(peaks_.least));
  peak(other, kRows);
  EXPECT_EQ(peak(other, 3 * kRows), first) << "the plan that a search finds";
  EXPECT_EQ(other.memory()->searches(), searches);
}

/// Like rows_piece(), with a large parameter `v`, whose gradient comes last: in small shapes it is
/// the peak, whatever is recomputed.
ExportedPiece large_gradient_piece() {
  ExportedPiece piece = rows_piece();
  piece.graph = parse_graph(R"(large (x: f32[b,16], w: param grad f32[16],
                                      v: param grad f32[4096]) => (y) {
    t = ReduceSum<axes=[], keepdims=0> (v); wt = Mul (w, t); p = Mul (x, wt)
    p0 = Mul (p, 0.25); s0 = Softmax<axis=-1> (p0); z0 = Mul (s0, w)
    p1 = Mul (p, 0.5); s1 = Softmax<axis=-1> (p1); z1 = Mul (s1, w)
    p2 = Mul (p, 2.0); s2 = Softmax<axis=-1> (p2); z2 = Mul (s2, w)
    y01 = Add (z0, z1); y = Add (y01, z2)
  })");
  infer(*piece.graph);
  piece.arguments.push_back({BoundInput::Kind::Tensor, 2, ""});
  return piece;
}

TEST_F(MemoryPolicyTest, ALargerShapeIsNotSearchedWhereGradientsHidItsNeeds) {
  const auto planned = [](Session& session, int64_t rows) {
    static const Sizes kMany = {4096}, kOne = {1};
    const RowsCall call(rows);
    CallShapes shapes = call;
    std::vector<LayoutView> arguments(shapes.arguments.begin(), shapes.arguments.end());
    arguments.push_back({kMany, kOne});
    shapes.arguments = arguments;
    return session.plan_for(shapes)->program.plan->peak_bytes;
  };
  Session large(large_gradient_piece(), with_budget(int64_t{1} << 40));
  const int64_t most = planned(large, 4 * kRows);
  const int64_t least = large.memory()->choice()->minimum_bytes;
  ASSERT_LT(least, most);
  Session session(large_gradient_piece(), with_budget(least));
  planned(session, kRows / 4);
  ASSERT_EQ(session.memory()->choice()->frontier.size(), 1);
  EXPECT_LE(planned(session, 4 * kRows), least);
  EXPECT_EQ(session.memory()->searches(), 1);
}

TEST_F(MemoryPolicyTest, AShareLeavesLessOfTheBudgetAndPlansAnew) {
  const SessionOptions options = with_budget(peaks_.most);
  Session session(rows_piece(), options);
  const auto alone = session.plan_for(RowsCall(kRows));
  EXPECT_TRUE(alone->decisions.empty());
  const int64_t others = peaks_.most - peaks_.least;
  session.memory()->set_budget_share({.others_bytes = others});
  const auto shared = session.plan_for(RowsCall(kRows));
  EXPECT_NE(shared, alone);
  EXPECT_LE(shared->program.plan->peak_bytes, peaks_.least);
  session.memory()->set_budget_share({.others_bytes = others, .growth = 2.0});
  EXPECT_EQ(session.plan_for(RowsCall(kRows)), shared) << "the same bytes";
  session.memory()->set_budget_share({});
  EXPECT_EQ(peak(session, kRows), peaks_.most);
}

TEST_F(MemoryPolicyTest, GrowthIsForOtherShapes) {
  const auto decided = [&](double growth) {
    Session session(rows_piece(), with_budget(2 * peaks_.most));
    peak(session, kRows);
    session.memory()->set_budget_share({.others_bytes = peaks_.most, .growth = growth});
    peak(session, 3 * kRows);
    return session.memory()->take_shortfall().has_value();
  };
  EXPECT_TRUE(decided(1.0));
  EXPECT_FALSE(decided(3.0));
}

TEST_F(MemoryPolicyTest, ASharedShapeThatDoesNotFitSaysWhatAllNeed) {
  Session session(rows_piece(), with_budget(peaks_.least));
  session.memory()->set_budget_share({.others_bytes = 100, .lenient = true});
  EXPECT_EQ(peak(session, kRows), peaks_.least);
  EXPECT_FALSE(session.memory()->take_shortfall());
  session.memory()->set_budget_share({.others_bytes = 104});
  peak(session, kRows);
  const std::optional<BudgetShortfall> found = session.memory()->take_shortfall();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->budget_bytes, peaks_.least) << "the whole budget, not the share";
  EXPECT_EQ(found->step_bytes, peaks_.least + 104);
  EXPECT_TRUE(found->has_pieces);
}

TEST_F(MemoryPolicyTest, AFractionIsNotShared) {
  SessionOptions options;
  options.memory.budget_fraction = 1.0;
  Session session(rows_piece(), options);
  const auto entry = session.plan_for(RowsCall(kRows));
  session.memory()->set_budget_share({.others_bytes = 100});
  EXPECT_EQ(session.plan_for(RowsCall(kRows)), entry);
}

TEST_F(MemoryPolicyTest, GradientsOfEarlierStepsAreCounted) {
  Session session(rows_piece(), with_budget(int64_t{1} << 40));
  const auto plain = session.plan_for(RowsCall(1));
  const PlanFigures before = session.memory()->figures_of({});
  session.memory()->assume_accumulation();
  const PlanFigures after = session.memory()->figures_of({});
  EXPECT_GT(after.peak_bytes, before.peak_bytes);
  const double gradients = 2 * grown_peak(after, 1.0) - grown_peak(after, 2.0);
  EXPECT_EQ(gradients, 2 * 16 * 4) << "earlier and new ones do not grow";
  EXPECT_NE(session.plan_for(RowsCall(1)), plain);
}

TEST_F(MemoryPolicyTest, GradientsOfGradientsAreCountedBesideWhatForwardSaves) {
  Session session(rows_piece(), with_budget(peaks_.most));
  const auto first = session.plan_for(RowsCall(kRows));
  const SymbolValues sizes = first->signature.request.symbols;
  const int64_t saved = first->program.plan->saved_bytes;
  const int64_t passes = peaks_.most - saved + 1;
  session.memory()->assume_derived(sizes, passes);
  const auto next = session.plan_for(RowsCall(kRows));
  EXPECT_LE(next->program.plan->saved_bytes + passes, peaks_.most);
  session.memory()->assume_derived(sizes, 2 * passes);
  EXPECT_EQ(session.plan_for(RowsCall(kRows)), next) << "the first call counts";
}

TEST_F(MemoryPolicyTest, StepsWithoutGradientsOfGradientsStillCount) {
  ExportedPiece piece = rows_piece();
  piece.graph = parse_graph(R"(sums (x: grad f32[b,16], w: param grad f32[16]) => (y) {
    t = Mul (x, w)
    y = ReduceSum<axes=[1], keepdims=1> (t)
  })");
  infer(*piece.graph);
  piece.output_strides = {{1, 1}};
  Session session(std::move(piece), with_budget(int64_t{1} << 40));
  const auto first = session.plan_for(RowsCall(kRows));
  const Plan& plan = *first->program.plan;
  ASSERT_GT(plan.peak_bytes, plan.forward_peak_bytes) << "the gradient of x is larger than y";
  session.memory()->assume_derived(first->signature.request.symbols, 1);
  EXPECT_EQ(session.memory()->figures_of({}).peak_bytes, plan.peak_bytes);
}

TEST_F(MemoryPolicyTest, OnlyAPeakOutsideTheBandIsObserved) {
  EXPECT_FALSE(MemoryPolicy::exceeds_plan(1000, 1000));
  EXPECT_FALSE(MemoryPolicy::exceeds_plan(1000, 1004));
  EXPECT_TRUE(MemoryPolicy::exceeds_plan(1000, 1006));
  EXPECT_FALSE(MemoryPolicy::exceeds_plan(1000, 10));
}

TEST_F(MemoryPolicyTest, ObservedPeaksOutdateAPlanAndAreReportedThreeTimes) {
  Session session(rows_piece(), {});
  for (int i = 0; i < 5; ++i) {
    const auto entry = session.plan_for(RowsCall(kRows));
    session.memory()->observe_peak(*entry, 100, 200);
    session.memory()->observe_peak(*entry, 100, 200);  // once for each plan
    EXPECT_TRUE(entry->outdated);
    EXPECT_EQ(session.memory()->take_warnings().size(), i < 3 ? 1u : 0u) << i;
  }
}

TEST_F(MemoryPolicyTest, AChoiceIsShownInTheShapesOfAPlan) {
  SessionOptions options;
  options.memory.level = 1;
  Session session(rows_piece(), options);
  EXPECT_THROW(session.memory()->figures_of({}), Error);
  EXPECT_EQ(session.memory()->choice(), nullptr);
  const auto first = session.plan_for(RowsCall(kRows));
  const auto other = session.plan_for(RowsCall(kRows + 1));
  EXPECT_EQ(*session.memory()->choice_in(*first).sizes.find("b"), kRows);
  const MemoryChoice shown = session.memory()->choice_in(*other);
  EXPECT_EQ(*shown.sizes.find("b"), kRows + 1);
  EXPECT_EQ(shown.after.peak_bytes, other->program.plan->peak_bytes);
  EXPECT_EQ(session.memory()->plan_with(other->decisions, &other->signature)->peak_bytes,
            other->program.plan->peak_bytes);
}

}  // namespace
}  // namespace ortmodule
