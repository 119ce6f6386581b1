// Recomputation: which nodes are cloned, where, and what a configuration calls them.
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/text.h"
#include "ir/verify.h"
#include "lower/lower.h"
#include "lower/recompute.h"
#include "ops/emit.h"
#include "optimizer/memory/memory_optimizer.h"
#include "plan/make_plan.h"

namespace ortmodule {
namespace {

std::unique_ptr<Graph> parse(std::string_view text) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  infer(*graph);
  return graph;
}

int id_of(const Graph& graph, std::string_view name) {
  for (const Value* value : graph.values())
    if (value->name == name) return value->id();
  ADD_FAILURE() << "no value is called " << name;
  return -1;
}

std::vector<std::string> backward_nodes(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& node : graph.nodes())
    if (node->region == Region::Backward) names.push_back(node->output()->name);
  return names;
}

// Two products with an activation each; backward reads both activations and their operands.
constexpr std::string_view kChain = R"(chain (x: f32[8,4], w: param grad f32[4,4],
    v: param grad f32[4,4], dy: dy 0 f32[8,4]) => (y, grad 1: dw, grad 2: dv) {
  a = MatMul (x, w)
  b = Tanh (a)
  c = MatMul (b, v)
  y = Tanh (c)
  backward: dc = TanhGrad (dy, y)
  backward: dv = FusedMatMul<transA=1> (b, dc)
  backward: db = FusedMatMul<transB=1> (dc, v)
  backward: da = TanhGrad (db, b)
  backward: dw = FusedMatMul<transA=1> (x, da)
})";

TEST(Recompute, ClonesStandBeforeTheirFirstReaderAndAreShared) {
  const auto graph = parse(kChain);
  insert_recomputation(*graph, {.recompute = {id_of(*graph, "b")}, .keep = {}});
  EXPECT_EQ(verify(*graph).value_or(""), "");
  const std::vector<std::string> wanted = {"dc", "a_recompute", "b_recompute", "dv",
                                           "db", "da",          "dw"};
  EXPECT_EQ(backward_nodes(*graph), wanted);
  const std::string text = print(*graph);
  EXPECT_NE(text.find("(b_recompute, dc)"), std::string::npos) << text;
  EXPECT_NE(text.find("TanhGrad (db, b_recompute)"), std::string::npos) << text;
}

TEST(Recompute, AKeptOperandEndsTheChain) {
  const auto graph = parse(kChain);
  insert_recomputation(*graph, {.recompute = {id_of(*graph, "b")}, .keep = {id_of(*graph, "a")}});
  const std::vector<std::string> nodes = backward_nodes(*graph);
  EXPECT_EQ(std::count(nodes.begin(), nodes.end(), "a_recompute"), 0);
  EXPECT_EQ(std::count(nodes.begin(), nodes.end(), "b_recompute"), 1);
}

TEST(Recompute, WhatTheCallerReceivesIsNeverRecomputed) {
  const auto graph = parse(kChain);
  const size_t before = graph->node_count();
  insert_recomputation(*graph, {.recompute = {id_of(*graph, "y")}, .keep = {}});
  EXPECT_EQ(graph->node_count(), before);
}

TEST(Recompute, APlannedPeakFallsByWhatIsNoLongerKept) {
  // Kernels of the core only.
  const auto graph = parse(R"(chain (x: f32[8,4], w: param grad f32[8,4], dy: dy 0 f32[8,4]) =>
      (y, grad 1: dw) {
    a = Mul (x, w)
    b = Softmax<axis=-1> (a)
    y = Mul (b, w)
    backward: c = Mul (dy, w)
    backward: d = SoftmaxGrad<axis=-1> (c, b)
    backward: e = Mul (d, x)
    backward: f = Mul (dy, b)
    backward: dw = Add (e, f)
  })");
  PlanRequest request;
  for (const GraphInput& input : graph->inputs()) {
    const Sizes sizes = evaluate(input.value->dims, {});
    request.arguments.push_back({sizes, contiguous_strides(sizes), 0});
  }
  const auto kept = make_plan(lower(*graph, Device::CPU), request);
  const auto dropped = make_plan(
      lower(*graph, Device::CPU, {.recompute = {id_of(*graph, "b")}, .keep = {}}), request);
  EXPECT_EQ(kept->saved_bytes, 8 * 4 * 4);
  EXPECT_EQ(dropped->saved_bytes, 0);
}

// A norm whose residual sum is kept: the norm is recomputed from the sum, not from the addends.
TEST(Recompute, AFusedNodeFallsApartAroundItsKeptResult) {
  const auto graph = parse(R"(norm (p: f32[8,4], q: f32[8,4], g: param grad f32[4],
      h: param f32[4], dy: dy 0 f32[8,4]) => (z, grad 2: dz) {
    s = Tanh (p)
    y, mean, rstd, sum = SkipLayerNormalization (s, q, g, h)
    z = Mul (y, sum)
    backward: dx = Mul (dy, sum)
    backward: dw = Mul (dx, y)
    backward: dz = ReduceSum<axes=[0], keepdims=0> (dw)
  })");
  insert_recomputation(*graph, {.recompute = {id_of(*graph, "y")}, .keep = {}});
  EXPECT_EQ(verify(*graph).value_or(""), "");
  const std::string text = print(*graph);
  const size_t backward = text.find("backward:");
  EXPECT_NE(text.find("LayerNormalization<", backward), std::string::npos);
  EXPECT_NE(text.find("(sum, g, h)", backward), std::string::npos) << text;
  EXPECT_EQ(text.find("Tanh", backward), std::string::npos) << "the addends are not needed";
}

TEST(Recompute, AnIndivisibleNodeRunsAgainWhole) {
  const auto graph = parse(R"(gelu (p: bf16[8,4], w: bf16[4,8], dy: dy 0 bf16[8,8]) => (z) {
    x = Tanh (p)
    y, pre = GemmFastGelu (x, w)
    z = Neg (y)
    backward: dpre = GeluGrad<approximate="tanh"> (dy, pre)
    backward: dw = Mul (dpre, y)
  })");
  insert_recomputation(*graph, {.recompute = {id_of(*graph, "y")}, .keep = {}});
  EXPECT_EQ(verify(*graph).value_or(""), "");
  const std::string text = print(*graph);
  const std::string backward = text.substr(text.find("backward:"));
  EXPECT_NE(backward.find("= GemmFastGelu<"), std::string::npos) << text;
  EXPECT_EQ(backward.find("= Gelu<"), std::string::npos) << text;
  EXPECT_NE(backward.find("(dy, pre)"), std::string::npos) << "what is kept is read";
}

TEST(Stashes, IdsAreOpTypesInProgramOrder) {
  const auto graph = parse(kChain);
  const std::vector<Stash> stashes = find_stashes(*graph);
  ASSERT_EQ(stashes.size(), 1u) << "x is an argument and y the caller's";
  ASSERT_EQ(stashes[0].subgraphs.size(), 1u);
  EXPECT_EQ(stashes[0].subgraphs[0].config(), "MatMul+Tanh+:1:-1");
  EXPECT_EQ(stashes[0].bytes.value(), 8 * 4 * 4);
}

TEST(Stashes, AWideningCastOffersTheCompromise) {
  const auto graph = parse(R"(cast (x: bf16[8,4], w: param grad bf16[4,4], dy: dy 0 f32[8,4]) =>
      (y, grad 1: dw) {
    a = MatMul (x, w)
    b = Cast<to=f32> (a)
    y = Mul (b, b)
    backward: d = Mul (dy, b)
    backward: e = Cast<to=bf16> (d)
    backward: dw = FusedMatMul<transA=1> (x, e)
  })");
  const std::vector<Stash> stashes = find_stashes(*graph);
  ASSERT_EQ(stashes.size(), 1u);
  ASSERT_EQ(stashes[0].subgraphs.size(), 2u);
  EXPECT_EQ(stashes[0].subgraphs[0].config(), "MatMul+Cast+:1:-1");
  EXPECT_EQ(stashes[0].subgraphs[1].config(), "Cast+:2:-1");
  EXPECT_EQ(stashes[0].subgraphs[0].saving_bytes.value(), 8 * 4 * 4);
  EXPECT_EQ(stashes[0].subgraphs[1].saving_bytes.value(), 8 * 4 * 2);
}

TEST(Stashes, ViewsOfOneStorageAreOneStash) {
  const auto graph = parse(R"(views (x: f32[8,4], w: param grad f32[4,4], dy: dy 0 f32[4,8]) =>
      (y, grad 1: dw) {
    a = MatMul (x, w)
    t = Transpose<perm=[1,0]> (a)
    y = Mul (t, t)
    backward: d = Mul (dy, t)
    backward: e = Transpose<perm=[1,0]> (d)
    backward: f = Mul (e, a)
    backward: dw = FusedMatMul<transA=1> (x, f)
  })");
  const std::vector<Stash> stashes = find_stashes(*graph);
  ASSERT_EQ(stashes.size(), 1u);
  EXPECT_EQ(stashes[0].bytes.value(), 8 * 4 * 4) << "one storage, counted once";
}

TEST(Stashes, UnrecordedRandomnessIsKept) {
  const auto graph = parse(R"(noise (x: f32[8,4], w: param grad f32[8,4], dy: dy 0 f32[8,4]) =>
      (y, grad 1: dw) {
    n: f32[8,4] = ATen<operator="aten.rand_like.default", random=1> (x)
    y = Mul (n, w)
    backward: dw = Mul (dy, n)
  })");
  const std::vector<Stash> stashes = find_stashes(*graph);
  ASSERT_EQ(stashes.size(), 1u);
  EXPECT_TRUE(stashes[0].subgraphs.empty());
  EXPECT_NE(stashes[0].refusal.find("unrecorded random"), std::string::npos);
}

}  // namespace
}  // namespace ortmodule
