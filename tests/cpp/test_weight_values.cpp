// Which values a session computes once from weights.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/emit.h"
#include "optimizer/weight_values.h"

namespace ortmodule::testing {
namespace {

std::unique_ptr<Graph> graph_of(const std::string& text) {
  auto graph = parse_graph(text);
  infer(*graph);
  return graph;
}

const Value* named(const Graph& graph, std::string_view name) {
  for (const auto& node : graph.nodes())
    for (const Value* output : node->outputs())
      if (output->name == name) return output;
  ADD_FAILURE() << "no value " << name;
  return nullptr;
}

// Weights of bytes that are widened, changed and narrowed again.
TEST(WeightValues, WhatIsSmallAgainIsComputedOnce) {
  auto graph = graph_of(
      "g (x: i8[n,512], w: const i8[512,512]) => (y) { a = Cast<to=f32> (w)  b = Mul (a, 0.5)  "
      "c = Cast<to=i8> (b)  y = MatMulInteger (x, c) }");
  const WeightValues weights(*graph);
  EXPECT_FALSE(weights.contains(named(*graph, "a"))) << "it is four times as large";
  EXPECT_TRUE(weights.is_result(*named(*graph, "c")));
  EXPECT_FALSE(weights.contains(named(*graph, "y")));
}

// What only leads to kept values is none of them; what a run computes from is.
TEST(WeightValues, WhatLargeValuesReadIsKeptWhereARunReadsThem) {
  const std::string head =
      "g (x: f32[n,512], w: const i8[512,512]) => (y) { t = Neg (w)  "
      "a = Cast<to=f32> (t)  ";
  auto kept = graph_of(head + "c = Cast<to=i8> (a)  d = Cast<to=f32> (c)  y = MatMul (x, d) }");
  const WeightValues inside(*kept);
  EXPECT_TRUE(inside.contains(named(*kept, "t")));
  EXPECT_FALSE(inside.is_result(*named(*kept, "t")));
  EXPECT_TRUE(inside.is_result(*named(*kept, "c")));
  auto read = graph_of(head + "y = MatMul (x, a) }");
  EXPECT_TRUE(WeightValues(*read).is_result(*named(*read, "t")));
}

}  // namespace
}  // namespace ortmodule::testing
