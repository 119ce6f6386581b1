// Saved activations on the host: where the copies stand, what they cost, and what they leave of the
// device's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ir/text.h"
#include "ir/verify.h"
#include "lower/lower.h"
#include "lower/recompute.h"
#include "ops/emit.h"
#include "optimizer/memory/memory_optimizer.h"
#include "plan/host_copies.h"
#include "plan/make_plan.h"
#include "plan/replay.h"
#include "plan/step_cost.h"

namespace ortmodule {
namespace {

constexpr int kLayers = 8;

/// Layers of a product and an activation, each of which saves its operand for backward.
std::unique_ptr<Graph> chain() {
  std::string text = "chain (x: f32[64,64], w: param grad f32[64,64], dy: dy 0 f32[64,64]) => (y";
  text += ", grad 1: dw) {\n";
  std::string last = "x";
  for (int i = 0; i < kLayers; ++i) {
    const std::string n = std::to_string(i);
    text += "  p" + n + " = MatMul (" + last + ", w)\n  a" + n + " = Tanh (p" + n + ")\n";
    last = "a" + n;
  }
  text += "  y = Identity (" + last + ")\n";
  std::string gradient = "dy", sum;
  for (int i = kLayers; i-- > 0;) {
    const std::string n = std::to_string(i), before = i > 0 ? "a" + std::to_string(i - 1) : "x";
    text += "  backward: g" + n + " = TanhGrad (" + gradient + ", a" + n + ")\n";
    text += "  backward: w" + n + " = FusedMatMul<transA=1> (" + before + ", g" + n + ")\n";
    text += "  backward: d" + n + " = FusedMatMul<transB=1> (g" + n + ", w)\n";
    if (!sum.empty()) text += "  backward: s" + n + " = Add (" + sum + ", w" + n + ")\n";
    sum = sum.empty() ? "w" + n : "s" + n;
    gradient = "d" + n;
  }
  std::unique_ptr<Graph> graph = parse_graph(text + "  backward: dw = Identity (" + sum + ")\n}");
  infer(*graph);
  return graph;
}

MemoryDecisions offloading(const Graph& graph, const std::vector<std::string>& names) {
  MemoryDecisions decisions;
  for (const Value* value : graph.values())
    if (std::ranges::find(names, value->name) != names.end())
      decisions.offload.push_back(value->id());
  EXPECT_EQ(decisions.offload.size(), names.size());
  return decisions;
}

/// Each step takes 10 us, and each copy `copy_us`.
PlanRequest request_with(double copy_us) {
  PlanRequest request;
  request.rates.flops_per_us = request.rates.bytes_per_us = 1e30;
  request.rates.to_host_bytes_per_us = request.rates.to_device_bytes_per_us = 1e30;
  request.rates.step_us = 10;
  request.rates.host_copy_us = copy_us;
  return request;
}

std::shared_ptr<Plan> plan_with(const std::vector<std::string>& names, double copy_us) {
  const auto graph = chain();
  return make_plan(lower(*graph, Device::CPU, offloading(*graph, names)), request_with(copy_us));
}

int step_of(const Plan& plan, std::string_view kernel_op, std::string_view result) {
  for (int s = 0; s < plan.step_count(); ++s) {
    const PlannedStep& step = plan.step(s);
    const TensorId named = step.kernel->op == "AwaitCopy" ? step.in[1] : step.out[0];
    if (step.kernel->op == kernel_op && plan.tensors[named].value->name == result) return s;
  }
  ADD_FAILURE() << "no " << kernel_op << " of " << result;
  return -1;
}

int step_reading(const Plan& plan, std::string_view name) {
  for (int s = plan.forward_steps; s < plan.step_count(); ++s)
    for (TensorId tensor : plan.step(s).in)
      if (!is_await(plan.step(s)) && tensor && plan.tensors[tensor].value->name == name) return s;
  ADD_FAILURE() << "no step reads " << name;
  return -1;
}

TEST(HostCopies, StandForTheValueInBackward) {
  const auto graph = chain();
  insert_recomputation(*graph, offloading(*graph, {"a1"}));
  EXPECT_EQ(verify(*graph).value_or(""), "");
  const std::string text = print(*graph);
  EXPECT_NE(text.find("a1_on_host: f32[64,64] = CopyToHost (a1)"), std::string::npos) << text;
  EXPECT_NE(text.find("a1_fetched: f32[64,64] = CopyToDevice (a1_on_host)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("TanhGrad (d2, a1_fetched)"), std::string::npos) << text;
  EXPECT_NE(text.find("(a1_fetched, g2)"), std::string::npos) << text;
}

TEST(HostCopies, AFastCopyFreesTheValueAtOnceAndComesBackDirectlyBeforeItsReader) {
  const auto plan = plan_with({"a1"}, 0);
  const int begins = step_of(*plan, "CopyToHost", "a1_on_host");
  EXPECT_EQ(step_of(*plan, "AwaitCopy", "a1_on_host"), begins + 1);
  const int back = step_of(*plan, "CopyToDevice", "a1_fetched");
  EXPECT_EQ(step_of(*plan, "AwaitCopy", "a1_fetched"), back + 1);
  EXPECT_EQ(step_reading(*plan, "a1_fetched"), back + 2);
}

TEST(HostCopies, ASlowCopyIsGivenTimeOnBothWays) {
  const auto plan = plan_with({"a1"}, 25);
  const int begins = step_of(*plan, "CopyToHost", "a1_on_host");
  EXPECT_EQ(step_of(*plan, "AwaitCopy", "a1_on_host"), begins + 4);  // 30 us behind it
  const int back = step_of(*plan, "CopyToDevice", "a1_fetched");
  const int reader = step_reading(*plan, "a1_fetched");
  EXPECT_EQ(step_of(*plan, "AwaitCopy", "a1_fetched"), reader - 1);
  EXPECT_EQ(reader - 1 - back, 4);
  EXPECT_NEAR(estimated_us(*plan, request_with(25).rates), 10.0 * plan->step_count(), 1e-6);
}

TEST(HostCopies, CopiesShareTheLink) {
  const auto plan = plan_with({"a1", "a2", "a3"}, 60);
  std::vector<int> backs, awaits;
  for (const char* name : {"a3_fetched", "a2_fetched", "a1_fetched"}) {
    backs.push_back(step_of(*plan, "CopyToDevice", name));
    awaits.push_back(step_of(*plan, "AwaitCopy", name));
  }
  EXPECT_TRUE(std::ranges::is_sorted(backs));
  // 60 us are six steps, and a layer has fewer: each copy leaves room for those behind it.
  EXPECT_GE(awaits[2] - backs[2], 6);
  EXPECT_GE(awaits[1] - backs[1], 6 + 6 - (awaits[2] - awaits[1]));
}

TEST(HostCopies, WaitsCount) {
  const double slow = 5000;
  const auto plan = plan_with({"a1"}, slow);
  EXPECT_GT(estimated_us(*plan, request_with(slow).rates), 2 * slow);
  // The end of forward is the last place to wait for a copy to the host.
  EXPECT_EQ(step_of(*plan, "AwaitCopy", "a1_on_host"), plan->forward_steps - 1);
  EXPECT_EQ(step_of(*plan, "CopyToDevice", "a1_fetched"), plan->forward_steps);
}

TEST(HostCopies, TakeNoMemoryOfTheDevice) {
  const std::vector<std::string> names = {"a0", "a1", "a2", "a3", "a4"};
  const auto kept = plan_with({}, 1), moved = plan_with(names, 1);
  constexpr int64_t kBytes = 64 * 64 * 4;
  EXPECT_EQ(kept->host_bytes, 0);
  EXPECT_EQ(moved->host_bytes, 5 * kBytes);
  EXPECT_EQ(moved->saved_bytes, kept->saved_bytes - 5 * kBytes);
  EXPECT_LE(moved->peak_bytes, kept->peak_bytes - 4 * kBytes);
}

TEST(HostCopies, AKeptGraphKeepsTheBlockOfTheHost) {
  const auto graph = chain();
  const Lowered lowered = lower(*graph, Device::CPU, offloading(*graph, {"a1", "a2"}));
  const auto base = make_plan(lowered, request_with(25));
  const auto again = make_backward_plan(*base, lowered, request_with(25), true);
  ASSERT_EQ(again->forward_steps, base->forward_steps);
  for (int s = 0; s < base->forward_steps; ++s)
    EXPECT_EQ(again->step(s).kernel, base->step(s).kernel);
  EXPECT_EQ(again->host_bytes, base->host_bytes);
  for (BufferId id : base->buffers.ids()) {
    if (base->buffers[id].kind != BufferKind::Host) continue;
    EXPECT_EQ(again->buffers[id].kind, BufferKind::Host);
    EXPECT_EQ(again->buffers[id].bytes, base->buffers[id].bytes);
  }
  EXPECT_GT(step_reading(*again, "a2_fetched"), step_of(*again, "AwaitCopy", "a2_fetched"));
}

TEST(HostCopies, AreNotMadeForGradientsThatDoNotArrive) {
  const auto graph = chain();
  const Lowered lowered = lower(*graph, Device::CPU, offloading(*graph, {"a1"}));
  const auto base = make_plan(lowered, request_with(1));
  const auto none =
      make_backward_plan(*base, prune_lowered(lowered, {false}), request_with(1), false);
  for (int s = none->forward_steps; s < none->step_count(); ++s)
    EXPECT_FALSE(is_host_copy(none->step(s)));
}

// A value of the host that two pointwise nodes read does not keep these from forming one step.
TEST(HostCopies, DoNotPartPointwiseGroups) {
  constexpr std::string_view kText = R"(rows (x: grad f32[64], dy: dy 0 f32[64]) => (y,
      grad 0: dx) {
    a = Tanh (x)
    b = Exp (a)
    y = Neg (b)
    backward: n = Neg (dy)
    backward: m = Mul (n, b)
    backward: dx = TanhGrad (m, a)
  })";
  const std::unique_ptr<Graph> graph = parse_graph(kText);
  infer(*graph);
  const Lowered kept = lower(*graph, Device::CPU);
  const Lowered moved = lower(*graph, Device::CPU, offloading(*graph, {"a", "b"}));
  EXPECT_EQ(moved.steps.size(), kept.steps.size() + 4);
}

// An operator of torch may return a scalar that lies in memory of the host already.
TEST(HostCopies, SmallResultsOfAMovedNodeStay) {
  constexpr std::string_view kText = R"(rows (x: grad f32[64,64], scale: f32[64], bias: f32[64],
      dy: dy 0 f32[64,64]) => (y, grad 0: dx) {
    n, mean, factor = LayerNormalization (x, scale, bias)
    y = Tanh (n)
    backward: g = TanhGrad (dy, y)
    backward: m = Mul (g, n)
    backward: s = Mul (m, mean)
    backward: dx = Mul (s, factor)
  })";
  const std::unique_ptr<Graph> graph = parse_graph(kText);
  infer(*graph);
  MemoryOptions options;
  options.offload = true;
  options.rates = request_with(1).rates;
  options.rates.to_host_bytes_per_us = 1000;
  options.config = {{"LayerNormalization+", Strategy::Offload, -1}};
  const MemoryChoice choice = choose_memory_plan(
      *graph, options, {}, {}, [](const MemoryDecisions&) { return PlanFigures(); });
  ASSERT_EQ(choice.decisions.offload.size(), 1u);
  for (const Value* value : graph->values()) {
    if (value->id() == choice.decisions.offload[0]) {
      EXPECT_EQ(value->name, "n");
    }
  }
}

}  // namespace
}  // namespace ortmodule
