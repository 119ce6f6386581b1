#include <gtest/gtest.h>

#include "ir/text.h"
#include "ir/verify.h"

namespace ortmodule {
namespace {

std::string violation(const Graph& graph) { return verify(graph).value_or("valid"); }

std::unique_ptr<Graph> small_graph() {
  return parse_graph(
      "g (x: f32[n], dy: dy 0 f32[n]) => (b, grad 0: c) {\n"
      "  a: f32[n] = Relu (x)\n"
      "  b: f32[n] = Mul (a, 2.0)\n"
      "  backward: c: f32[n] = ReluGrad (dy, a)\n"
      "}\n");
}

TEST(Verify, AcceptsAValidGraph) { EXPECT_EQ(violation(*small_graph()), "valid"); }

TEST(Verify, UseBeforeDefinitionShowsTheNeighbourhood) {
  auto graph = small_graph();
  const auto nodes = graph->node_pointers();
  graph->move_before(nodes[1], nodes[0]);
  EXPECT_EQ(violation(*graph),
            "[graph g] an operand must be defined before its use, but Mul reads 'a'\n"
            "--> b: f32[n] = Mul (a, 2.0)\n"
            "    a: f32[n] = Relu (x)\n"
            "    backward: c: f32[n] = ReluGrad (dy, a)");
}

TEST(Verify, ValuesOfAnotherGraph) {
  auto graph = small_graph();
  auto other = small_graph();
  graph->set_input(graph->node_pointers()[1], 1, other->inputs()[0].value);
  EXPECT_NE(violation(*graph).find("defined before its use"), std::string::npos);
}

TEST(Verify, UntypedValue) {
  auto graph = small_graph();
  graph->node_pointers()[0]->output()->dtype = DType::Undefined;
  EXPECT_NE(violation(*graph).find("a value must have an element type, but 'a' has none"),
            std::string::npos);
}

TEST(Verify, EqualNames) {
  auto graph = small_graph();
  graph->node_pointers()[1]->output()->name = "x";
  EXPECT_NE(violation(*graph).find("but found 'x' twice"), std::string::npos);
}

TEST(Verify, ForwardReadsBackward) {
  auto graph = small_graph();
  graph->node_pointers()[0]->region = Region::Backward;
  EXPECT_NE(violation(*graph).find("forward must not read backward, but Mul reads 'a'"),
            std::string::npos);
  graph = small_graph();
  graph->add_output(graph->inputs()[1].value, OutputKind::Output, 1);
  EXPECT_NE(violation(*graph).find("an output of forward must not come from backward, but 'dy'"),
            std::string::npos);
}

TEST(Verify, GradientOfAnotherType) {
  auto graph = small_graph();
  graph->node_pointers()[2]->output()->dtype = DType::Float16;
  EXPECT_NE(violation(*graph).find("must have the type of its input 'x' f32[n], but found f16[n]"),
            std::string::npos);
  graph = small_graph();
  graph->add_output(graph->inputs()[0].value, OutputKind::Mutation, 9);
  EXPECT_NE(violation(*graph).find("must name an input, but found index 9"), std::string::npos);
}

TEST(Verify, Subgraphs) {
  auto graph = parse_graph(
      "g (x: f32[]) => (y) { y: f32[] = If<body={inner (a: f32[]) => (b) { b = Relu (a) }}> (x) }");
  EXPECT_NE(violation(*graph).find("graph attribute 'body' must be valid"), std::string::npos);
}

}  // namespace
}  // namespace ortmodule
