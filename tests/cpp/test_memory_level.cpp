// What a level recomputes, with peaks and times that are given instead of planned.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ir/text.h"
#include "ops/emit.h"
#include "optimizer/memory/memory_optimizer.h"

namespace ortmodule {
namespace {

// Three values that backward reads, each of a row of its own.
constexpr std::string_view kRows = R"(rows (x: f32[8,4], w: param grad f32[4,4],
    v: param grad f32[4,4], u: param grad f32[4,4], dy: dy 0 f32[8,4]) =>
    (y, grad 1: dw, grad 2: dv, grad 3: du) {
  a = MatMul (x, w)
  tanh = Tanh (a)
  b = MatMul (tanh, v)
  sigmoid = Sigmoid (b)
  c = MatMul (sigmoid, u)
  exp = Exp (c)
  y = Relu (exp)
  backward: dexp = ReluGrad (dy, y)
  backward: dc = Mul (dexp, exp)
  backward: du = FusedMatMul<transA=1> (sigmoid, dc)
  backward: dsigmoid = FusedMatMul<transB=1> (dc, u)
  backward: db = SigmoidGrad (dsigmoid, sigmoid)
  backward: dv = FusedMatMul<transA=1> (tanh, db)
  backward: dtanh = FusedMatMul<transB=1> (db, v)
  backward: da = TanhGrad (dtanh, tanh)
  backward: dw = FusedMatMul<transA=1> (x, da)
})";

/// What recomputing a value saves of 1,000 bytes, and costs beside 1,000 us.
struct Row {
  int64_t bytes = 0;
  double us = 0.0;
};
using Rows = std::map<std::string, Row>;

/// Names of the values that level 1 recomputes.
std::set<std::string> recomputed(const Rows& rows) {
  const std::unique_ptr<Graph> graph = parse_graph(kRows);
  infer(*graph);
  std::map<int, std::string> name_of;
  for (const Value* value : graph->values()) name_of[value->id()] = value->name;
  const Evaluate evaluate = [&](const MemoryDecisions& decisions) {
    PlanFigures figures;
    figures.peak_bytes = figures.accumulating_peak_bytes = 1000;
    figures.time_us = 1000.0;
    for (int id : decisions.recompute) {
      const auto row = rows.find(name_of[id]);
      if (row == rows.end()) continue;
      figures.peak_bytes -= row->second.bytes;
      figures.accumulating_peak_bytes -= row->second.bytes;
      figures.time_us += row->second.us;
    }
    return figures;
  };
  MemoryOptions options;
  options.level = 1;
  const MemoryChoice choice = choose_memory_plan(*graph, options, {}, {}, evaluate);
  std::set<std::string> names;
  for (int id : choice.decisions.recompute)
    if (rows.contains(name_of[id])) names.insert(name_of[id]);
  return names;
}

using Names = std::set<std::string>;

TEST(Level, KeepsWhatTakesALargerPartOfTheTimeThanOfThePeak) {
  // The least peak is 470 bytes; 30 more are 6.4 % of it.
  const Row half{470, 10.0}, nothing{30, 1.0};
  EXPECT_EQ(recomputed({{"tanh", half}, {"sigmoid", {30, 100.0}}, {"exp", nothing}}),
            (Names{"tanh", "exp"}));
  EXPECT_EQ(recomputed({{"tanh", half}, {"sigmoid", {30, 40.0}}, {"exp", nothing}}),
            (Names{"tanh", "sigmoid", "exp"}));
}

TEST(Level, TakesNoMoreThanATenthOfTheLeastPeak) {
  // 60 bytes of the least 440 are more, whatever they cost.
  EXPECT_EQ(recomputed({{"tanh", {470, 10.0}}, {"sigmoid", {60, 900.0}}, {"exp", {30, 1.0}}}),
            (Names{"tanh", "sigmoid", "exp"}));
}

TEST(Level, GivesBackAtMostAQuarterOfWhatWasGained) {
  // 100 bytes in all: 26 of them are 2.9 % of the least peak, but too large a part of the gain.
  EXPECT_EQ(recomputed({{"tanh", {40, 10.0}}, {"sigmoid", {26, 200.0}}, {"exp", {34, 10.0}}}),
            (Names{"tanh", "sigmoid", "exp"}));
  EXPECT_EQ(recomputed({{"tanh", {40, 10.0}}, {"sigmoid", {24, 200.0}}, {"exp", {36, 10.0}}}),
            (Names{"tanh", "exp"}));
}

TEST(Level, GivesTheRoomToWhatCostsMost) {
  // Of two rows of 6 % only one can be kept: not the first one of the table.
  EXPECT_EQ(recomputed({{"tanh", {470, 10.0}}, {"sigmoid", {31, 100.0}}, {"exp", {30, 200.0}}}),
            (Names{"tanh", "sigmoid"}));
}

TEST(Level, KeepsWhatLowersThePeakByNextToNothing) {
  EXPECT_EQ(recomputed({{"tanh", {500, 10.0}}, {"sigmoid", {5, 0.5}}, {"exp", {0, 0.5}}}),
            (Names{"tanh"}));
}

// Three blocks of which no two have the same nodes.
constexpr std::string_view kBlocks = R"(blocks (x: f32[8,4], w: param grad f32[4,4],
    v: param grad f32[4,4], u: param grad f32[4,4], dy: dy 0 f32[8,4]) => (y) {
  a = MatMul (x, w)
  b = Tanh (a)
  c = Exp (b)
  d = Add (c, a)
  e = Sigmoid (d)
  f = MatMul (e, v)
  g = Mul (f, e)
  h = Add (g, d)
  i = MatMul (h, u)
  j = Relu (i)
  k = Softplus (j)
  l = Sub (k, h)
  y = Abs (l)
})";

std::vector<std::string> boundaries(const std::vector<std::pair<char, std::string>>& modules) {
  const std::unique_ptr<Graph> graph = parse_graph(kBlocks);
  infer(*graph);
  for (const auto& node : graph->nodes())
    for (const auto& [last, module] : modules)
      if (node->output()->name[0] >= last) node->origin.module = module;
  std::vector<std::string> names;
  for (const LayerGroup& group : find_layers(*graph, {}).groups) {
    EXPECT_EQ(group.starts.size(), group.count);
    for (const Value* value : group.boundaries) names.push_back(value->name);
  }
  return names;
}

TEST(Layers, AreModulesOfANumberedListWhereNothingRepeats) {
  using List = std::vector<std::string>;
  EXPECT_EQ(boundaries({{'a', "blocks.0"}, {'e', "blocks.1.part"}, {'i', "blocks.2"}, {'y', ""}}),
            (List{"d", "h", "l"}));
  // The list that cuts the graph into more even parts, and lists beside each other.
  EXPECT_EQ(boundaries({{'a', "0.at.0"}, {'e', "0.at.1"}, {'i', "0.at.2"}, {'y', "1"}}),
            (List{"d", "h", "l"}));
  EXPECT_EQ(boundaries({{'a', "one"}, {'e', "two"}, {'i', "three.0"}, {'y', ""}}), List());
  // Modules of a few nodes are steps of one layer.
  EXPECT_EQ(boundaries({{'a', "0"}, {'b', "1"}, {'e', "2"}, {'f', "3"}, {'i', "4"}, {'y', "5"}}),
            List());
}

}  // namespace
}  // namespace ortmodule
