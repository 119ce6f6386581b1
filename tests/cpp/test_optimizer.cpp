// The pass manager, the rewriter and the lists of passes; single passes are tests/golden's.
#include <gtest/gtest.h>

#include <fstream>

#include "ir/text.h"
#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/pass_manager.h"
#include "optimizer/pipeline.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

std::unique_ptr<Graph> read(std::string_view text) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  infer(*graph);
  return graph;
}

std::string normal(std::string_view text) { return print(*read(text)); }

// Applies one rule; the row tells hits and reasons.
PassRow apply(Graph& graph, const RewriteRule& rule, Stage stage = Stage::Forward) {
  const RuleSet rules = {rule};
  const Pass pass{"rule",
                  [&](Graph& g, PassContext& context) { return apply_rules(g, rules, context); }};
  OptimizerOptions options;
  options.verify = true;
  options.partial_reasons = true;
  return run_passes(graph, stage, {pass}, options).rows.at(0);
}

Pass renaming_pass(std::string name, std::string to) {
  return {std::move(name), [to](Graph& graph, PassContext& context) {
            if (!context.take()) return false;
            graph.rename(graph.nodes().front()->output(), to);
            return true;
          }};
}

constexpr std::string_view kSmall = "g (x: f32[4]) => (y) { a = Exp (x)  y = Neg (a) }";

TEST(PassManager, ReportsWhatHappened) {
  auto graph = read("g (x: f32[4]) => (y) { a = Exp (x)  y = Neg (x) }");
  const PassReport report = run_passes(*graph, Stage::Forward, forward_passes(), {});
  const PassRow* row = report.find("eliminate_dead_code");
  ASSERT_TRUE(row);
  EXPECT_EQ(row->nodes_before, 2u);
  EXPECT_EQ(row->nodes_after, 1u);
  EXPECT_EQ(row->hits, 1);
  EXPECT_NE(text(report).find("2 -> 1 nodes  1 hits"), std::string::npos) << text(report);
  EXPECT_FALSE(report.find("no such pass"));
}

TEST(PassManager, DumpsChangedGraphsOnly) {
  auto graph = read(kSmall);
  std::vector<std::string> dumps;
  OptimizerOptions options;
  options.first_dump_stage = 10;
  options.dump = [&](int stage, std::string_view name, const std::string& text) {
    dumps.push_back(str(stage, " ", name, text.find("b: f32") != std::string::npos ? " b" : ""));
  };
  const Pass idle{"idle", [](Graph&, PassContext&) { return false; }};
  run_passes(*graph, Stage::Forward, {idle, renaming_pass("rename", "b"), idle}, options);
  EXPECT_EQ(dumps, std::vector<std::string>{"11 rename b"});
}

TEST(PassManager, FuelIsSharedByPassesAndGraphs) {
  OptimizerOptions options;
  options.fuel = std::make_shared<int64_t>(2);
  const std::vector<Pass> passes = {renaming_pass("one", "b"), renaming_pass("two", "c")};
  auto first = read(kSmall);
  run_passes(*first, Stage::Forward, passes, options);
  auto second = read(kSmall);
  const PassReport report = run_passes(*second, Stage::Joint, passes, options);
  EXPECT_EQ(*options.fuel, 0);
  EXPECT_EQ(report.rows[0].hits, 0);
  EXPECT_EQ(print(*second), normal(kSmall));
}

TEST(PassManager, FuelStopsInTheMiddleOfAPass) {
  constexpr std::string_view text =
      "g (h: f32[8,64], b: f32[64]) => (y) {"
      " s = Add (h, b)  t = Gelu (s)  u = Add (t, b)  y = Gelu (u) }";
  for (int64_t fuel = 0; fuel <= 3; ++fuel) {
    auto graph = read(text);
    OptimizerOptions options;
    options.fuel = std::make_shared<int64_t>(fuel);
    options.verify = true;
    optimize_forward(*graph, options);
    EXPECT_EQ(graph->node_count(), static_cast<size_t>(4 - std::min<int64_t>(fuel, 2)));
  }
}

TEST(PassManager, DisabledPassesDoNotRun) {
  auto graph = read("g (h: f32[8,64], b: f32[64]) => (y) { s = Add (h, b)  y = Gelu (s) }");
  OptimizerOptions options;
  options.disabled = {"fuse_bias_gelu"};
  const PassReport report = optimize_forward(*graph, options);
  EXPECT_TRUE(report.find("fuse_bias_gelu")->disabled);
  EXPECT_EQ(graph->node_count(), 2u);
}

TEST(PassManager, RefusesUnknownPassNames) {
  auto graph = read(kSmall);
  OptimizerOptions options;
  options.disabled = {"fuse_bias_gleu"};
  EXPECT_THROW(optimize_forward(*graph, options), Error);
}

TEST(PassManager, NamesThePassThatBrokeTheGraph) {
  auto graph = read(kSmall);
  OptimizerOptions options;
  options.verify = true;
  const Pass breaking{"break_order", [](Graph& g, PassContext&) {
                        const std::vector<Node*> nodes = g.node_pointers();
                        g.move_before(nodes[1], nodes[0]);
                        return true;
                      }};
  try {
    run_passes(*graph, Stage::Forward, {renaming_pass("rename", "b"), breaking}, options);
    FAIL() << "verification found nothing";
  } catch (const InternalError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("pass break_order left an invalid graph"), std::string::npos) << what;
    EXPECT_NE(what.find("earlier passes with hits: rename"), std::string::npos) << what;
  }
}

TEST(Rewrite, AsksForEachOrderOfOperands) {
  const RewriteRule rule = {.name = "wide first",
                            .pattern = "(x, b) => (y) { y = Add (x, b) }",
                            .replacement = "(x, b) => (y) { n = Neg (b)  y = Sub (x, n) }",
                            .reject = [](const Match& m) -> Reason {
                              if (m.rank("x") != 2) return str("x has rank ", m.rank("x"));
                              return {};
                            }};
  auto graph = read("g (b: f32[8], h: f32[4,8]) => (y) { y = Add (b, h) }");
  EXPECT_EQ(apply(*graph, rule).hits, 1);
  EXPECT_EQ(print(*graph),
            normal("g (b: f32[8], h: f32[4,8]) => (y) { Neg = Neg (b)  y = Sub (h, Neg) }"));
}

TEST(Rewrite, CapturesLiteralsAsOperandsAndAttributes) {
  const RewriteRule rule = {.name = "leaky",
                            .pattern = "(x, $c) => (y) { z = Mul (x, c)  y = Max (x, z) }",
                            .replacement = "(x) => (y) { y = LeakyRelu<alpha=@c> (x) }"};
  auto graph = read("g (x: f32[8]) => (y) { z = Mul (0.25, x)  y = Max (z, x) }");
  EXPECT_EQ(apply(*graph, rule).hits, 1);
  EXPECT_EQ(print(*graph), normal("g (x: f32[8]) => (y) { y = LeakyRelu<alpha=0.25> (x) }"));
  auto tensor = read("g (x: f32[8], c: f32[]) => (y) { z = Mul (c, x)  y = Max (z, x) }");
  EXPECT_EQ(apply(*tensor, rule).hits, 0);
}

TEST(Rewrite, MatchesLiteralsByValueAndSign) {
  const RewriteRule rule = {.name = "half",
                            .pattern = "(x) => (y) { y = Mul (x, 0.5) }",
                            .replacement = "(x) => (y) { y = Div (x, 2.0) }"};
  auto graph = read("g (x: f32[8]) => (y, z) { y = Mul (0.5, x)  z = Mul (x, -0.5) }");
  const PassRow row = apply(*graph, rule);
  EXPECT_EQ(row.hits, 1);
  EXPECT_EQ(row.rejections.at(0).reason, "no literal 0.5");
  EXPECT_EQ(print(*graph),
            normal("g (x: f32[8]) => (y, z) { y = Div (x, 2.0)  z = Mul (x, -0.5) }"));
}

TEST(Rewrite, FindsNodesThatTheRootDoesNotReach) {
  const RewriteRule rule = {
      .name = "both signs",
      .pattern = "(x) => (a, b) { a = Relu (x)  n = Neg (x)  b = Relu (n) }",
      .replacement = "(x) => (a, b) { a = Max (x, 0.0)  m = Min (x, 0.0)  b = Neg (m) }"};
  auto graph = read(
      "g (x: f32[8]) => (c, b) { a = Relu (x)  c = Exp (a)  n = Neg (x)"
      "  b = Relu (n) }");
  EXPECT_EQ(apply(*graph, rule).hits, 1);
  EXPECT_EQ(print(*graph), normal("g (x: f32[8]) => (c, b) { a = Max (x, 0.0)"
                                  "  Min = Min (x, 0.0)  b = Neg (Min)  c = Exp (a) }"));
}

TEST(Rewrite, KeepsOriginRegionAndTagOfTheRoot) {
  auto graph = read("g (x: f32[8]) => (grad 0: y) { backward: tag checkpoint: y = Abs (x) }");
  graph->node_pointers()[0]->origin = {"encoder", "model.py:7"};
  const RewriteRule rule = {.name = "abs",
                            .pattern = "(x) => (y) { y = Abs (x) }",
                            .replacement = "(x) => (y) { n = Neg (x)  y = Max (x, n) }"};
  EXPECT_EQ(apply(*graph, rule, Stage::Joint).hits, 1);
  for (const Node* node : graph->node_pointers()) {
    EXPECT_EQ(node->origin.source, "model.py:7");
    EXPECT_EQ(node->region, Region::Backward);
    EXPECT_EQ(node->tag, "checkpoint");
  }
}

TEST(Rewrite, ReportsPlacesWithTheSameReasonOnce) {
  const RewriteRule rule = {.name = "r",
                            .pattern = "(x) => (y) { n = Neg (x)  y = Exp (n) }",
                            .replacement = "(x) => (y) { y = Exp (x) }"};
  auto graph = read("g (x: f32[8]) => (y, z) { y = Exp (x)  z = Exp (y) }");
  const PassRow row = apply(*graph, rule);
  ASSERT_EQ(row.rejections.size(), 2u);
  EXPECT_EQ(row.rejections[0].reason, "operand n is not produced by Neg");
  EXPECT_EQ(row.rejections[1].reason, "Exp is not Neg");
  EXPECT_FALSE(row.rejections[1].complete);
  EXPECT_EQ(row.rejections[1].where, "z");
}

TEST(Rewrite, RulesThatUndoEachOtherEndWithAnError) {
  const RuleSet rules = {{.name = "there",
                          .pattern = "(x) => (y) { y = Exp (x) }",
                          .replacement = "(x) => (y) { y = Log (x) }"},
                         {.name = "back",
                          .pattern = "(x) => (y) { y = Log (x) }",
                          .replacement = "(x) => (y) { y = Exp (x) }"}};
  auto graph = read("g (x: f32[8]) => (y) { y = Exp (x) }");
  const Pass pass{"loop", [&](Graph& g, PassContext& c) { return apply_rules(g, rules, c); }};
  EXPECT_THROW(run_passes(*graph, Stage::Forward, {pass}, {}), InternalError);
}

TEST(Edit, ErasesWhatDiedWithANode) {
  auto graph =
      read("g (x: f32[8]) => (z) { a = Exp (x)  b = Mul (a, a)  c = Neg (b)  z = Relu (a) }");
  erase_if_dead(*graph, graph->node_pointers()[2]);
  EXPECT_EQ(print(*graph), normal("g (x: f32[8]) => (z) { a = Exp (x)  z = Relu (a) }"));
}

TEST(Edit, KnowsWhatSixteenBitsHold) {
  EXPECT_TRUE(is_stored_exactly(Scalar(0.1), DType::Float32));
  EXPECT_FALSE(is_stored_exactly(Scalar(0.1), DType::BFloat16));
  EXPECT_TRUE(is_stored_exactly(Scalar(-0.75), DType::BFloat16));
  EXPECT_TRUE(is_stored_exactly(Scalar(256.0), DType::Float16));
  EXPECT_FALSE(is_stored_exactly(Scalar(257.0), DType::BFloat16));
  EXPECT_FALSE(is_stored_exactly(Scalar(-1e9), DType::Float16));
}

// A block as an exporter writes it, with post-normalization and dropout.
constexpr std::string_view kBlock = R"(
  block (x: f32[n,16,64], w1: param grad f32[64,256], b1: param grad f32[256],
         w2: param grad f32[256,64], b2: param grad f32[64], s: param grad f32[64],
         b: param grad f32[64], m: f32[n,1,16]) => (y) {
    q = Identity (x)
    k = Transpose<perm=[0,2,1]> (q)
    p = MatMul (q, k)
    d = Div (p, 8.0)
    e = Add (d, m)
    f = Softmax<axis=-1> (e)
    c = MatMul (f, q)
    r = Add (c, x)
    h, m0, i0 = LayerNormalization<axis=-1, epsilon=1e-5> (r, s, b)
    u = MatMul (h, w1)
    v = Add (u, b1)
    g = Gelu (v)
    o = MatMul (g, w2)
    t = Add (o, b2)
    z = Dropout<ratio=0.1, rng=0> (t)
    a = Add (z, h)
    y, m1, i1 = LayerNormalization<axis=-1, epsilon=1e-5> (a, s, b)
  })";

TEST(Pipeline, FusesATransformerBlock) {
  auto graph = read(kBlock);
  OptimizerOptions options;
  options.verify = true;
  const PassReport report = optimize_forward(*graph, options);
  std::vector<std::string> ops;
  for (const Node* node : graph->node_pointers()) ops.push_back(node->op);
  const std::vector<std::string> expected = {
      "FusedMatMul", "BiasSoftmax", "MatMul",      "SkipLayerNormalization", "MatMul",
      "BiasGelu",    "MatMul",      "BiasDropout", "LayerNormalization"};
  EXPECT_EQ(ops, expected) << print(*graph) << text(report, true);
  const std::string before = print(*graph);
  optimize_forward(*graph, options);
  EXPECT_EQ(print(*graph), before) << "a second run finds more";
}

TEST(Pipeline, AFusionThatDoesNotExistIsNamed) {
  EXPECT_EQ(fusion_named("fuse_matmul").name, "fuse_matmul");
  try {
    fusion_named("fuse_matmull");
    FAIL() << "found";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("found 'fuse_matmull'"), std::string::npos) << text;
    EXPECT_NE(text.find("fuse_matmul,"), std::string::npos) << text;
  }
}

TEST(Pipeline, PassesHaveUniqueNames) {
  for (const auto& passes : {forward_passes(), joint_passes()}) {
    std::set<std::string> names;
    for (const Pass& pass : passes) EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
  }
}

TEST(Pipeline, EveryPassHasAGoldenFile) {
  for (const auto& passes : {forward_passes(), joint_passes()})
    for (const Pass& pass : passes) {
      const std::string file = str(ORTM_SOURCE_DIR, "/tests/golden/", pass.name, ".txt");
      EXPECT_TRUE(std::ifstream(file).good()) << file;
    }
}

}  // namespace
}  // namespace ortmodule
