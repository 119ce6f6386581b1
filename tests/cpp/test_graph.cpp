#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace ortmodule {
namespace {

std::unique_ptr<Graph> chain() {
  return parse_graph(
      "g (x: f32[n]) => (c) { a: f32[n] = Relu (x) b: f32[n] = Add (a, a) c: f32[n] = Neg (b) }");
}

TEST(Graph, ReplaceAllUsesMovesOutputsToo) {
  auto graph = chain();
  const auto nodes = graph->node_pointers();
  graph->replace_all_uses(nodes[0]->output(), graph->inputs()[0].value);
  EXPECT_TRUE(nodes[0]->output()->uses().empty());
  EXPECT_EQ(graph->inputs()[0].value->uses().size(), 3u);
  graph->erase(nodes[0]);
  graph->replace_all_uses(nodes[2]->output(), nodes[1]->output());
  EXPECT_FALSE(nodes[2]->output()->is_graph_output());
  EXPECT_TRUE(nodes[1]->output()->is_graph_output());
  graph->erase(nodes[2]);
  EXPECT_EQ(graph->node_count(), 1u);
  EXPECT_FALSE(verify(*graph));
}

TEST(Graph, EraseRefusesWhatIsUsed) {
  auto graph = chain();
  EXPECT_THROW(graph->erase(graph->node_pointers()[0]), InternalError);
  EXPECT_THROW(graph->erase(graph->node_pointers()[2]), InternalError);
}

TEST(Graph, LiteralsAreShared) {
  Graph graph;
  Value* half = graph.literal(0.5, DType::Float32);
  EXPECT_EQ(graph.literal(0.5, DType::Float32), half);
  EXPECT_NE(graph.literal(0.5, DType::Float64), half);
  EXPECT_NE(graph.literal(DimExpr(1), DType::Int64), graph.literal(1.0, DType::Int64));
  EXPECT_NE(graph.literal(0.0, DType::Float32), graph.literal(-0.0, DType::Float32));
}

TEST(Graph, CollectsSymbolsOfSizesAttributesAndLiterals) {
  auto graph = parse_graph(
      "g (x: f32[n, 4]) => (c) { a: f32[n*4] = Reshape<shape=[n*4]> (x) "
      "b: f32[m] = Expand<shape=[m]> (a) c: f32[m] = Mul (b, b) }");
  graph->set_input(graph->node_pointers()[2], 1,
                   graph->literal(DimExpr::symbol("k"), DType::Float32));
  std::vector<std::string> names;
  graph->collect_symbols(names);
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"k", "m", "n"}));
}

TEST(Graph, NamesAreUnique) {
  Graph graph;
  Value* x = graph.add_input("x", DType::Float32, {});
  EXPECT_EQ(graph.add_input("x", DType::Float32, {})->name, "x_2");
  EXPECT_EQ(graph.add_input("x_2", DType::Float32, {})->name, "x_2_2");
  graph.rename(x, "y");
  EXPECT_EQ(graph.add_input("x", DType::Float32, {})->name, "x");
}

TEST(Graph, CloneIsEqualAndApart) {
  auto graph = chain();
  std::unordered_map<const Value*, Value*> map;
  auto copy = graph->clone(&map);
  EXPECT_EQ(print(*copy), print(*graph));
  EXPECT_FALSE(verify(*copy));
  EXPECT_EQ(map.at(graph->inputs()[0].value), copy->inputs()[0].value);
  copy->node_pointers()[0]->op = "Exp";
  EXPECT_EQ(graph->node_pointers()[0]->op, "Relu");
}

TEST(Graph, InsertingTakesPlaceOriginAndRegion) {
  auto graph = chain();
  Node* last = graph->node_pointers()[2];
  last->origin.module = "head";
  last->region = Region::Backward;
  {
    Graph::Inserting here(*graph, last);
    Node* node = graph->add_node("Tanh", {last->input(0)}, 1, {});
    EXPECT_EQ(node->origin.module, "head");
    EXPECT_EQ(node->region, Region::Backward);
  }
  EXPECT_EQ(graph->node_pointers()[2]->op, "Tanh");
  EXPECT_EQ(graph->current_region, Region::Forward);
}

TEST(Graph, InlineBindsInputsAndLiterals) {
  auto graph = chain();
  auto body = parse_graph(
      "b (p: f32[n], q: f32[n]) => (s, p) { r: f32[n] = Mul (p, 3.0) s: f32[n] = Add (r, q) }");
  Value* x = graph->inputs()[0].value;
  const auto results = graph->inline_graph(*body, {x, x});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0]->producer()->op, "Add");
  EXPECT_EQ(results[1], x);
  EXPECT_EQ(graph->node_count(), 5u);
  EXPECT_FALSE(verify(*graph));
  EXPECT_THROW(graph->inline_graph(*body, {x}), InternalError);
}

TEST(Attrs, EqualityIgnoresOrder) {
  const Attrs a{{"x", DimExpr(1)}, {"y", 0.5}};
  const Attrs b{{"y", 0.5}, {"x", DimExpr(1)}};
  EXPECT_EQ(a, b);
  Attrs c = b;
  c.set("x", DimExpr(2));
  EXPECT_FALSE(a == c);
  c.erase("x");
  EXPECT_FALSE(c.has("x"));
}

TEST(Attrs, ResolveEvaluatesSizes) {
  SymbolValues values;
  values.bind("n", 6);
  const Attrs attrs{{"shape", Dims{DimExpr::symbol("n"), 4}},
                    {"end", DimExpr::floor_div(DimExpr::symbol("n"), 4)}};
  const Attrs resolved = attrs.resolve(values);
  EXPECT_EQ(resolved.integers("shape"), (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(resolved.integer("end"), 1);
  EXPECT_THROW(attrs.integer("end"), InternalError);
  EXPECT_THROW(attrs.integer("missing"), InternalError);
}

}  // namespace
}  // namespace ortmodule
