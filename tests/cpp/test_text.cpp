#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "ir/text.h"

namespace ortmodule {
namespace {

constexpr std::string_view kJoint =
    R"(step (x: f32[batch,64], w: param grad f32[64,64], n: buffer i64[], c: const bf16[2], g: dy 0 f32[batch,64]) => (y, mutate 2: m, grad 1: dw) {
  h: f32[batch,64] = MatMul (x, w)
  tag checkpoint: y: f32[batch,64] = Mul (h, 0.5)
  m: i64[] = Add (n, 1.0)
  backward: t: f32[64,batch] = Transpose<perm=[1,0]> (x)
  backward: dw: f32[64,64] = MatMul (t, g)
}
)";

void expect_exact(std::string_view text) {
  auto graph = parse_graph(text);
  EXPECT_EQ(print(*graph), text);
  EXPECT_EQ(print(*graph->clone()), text);
}

std::string error_of(std::string_view text) {
  try {
    parse_graph(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Text, JointGraphReadsAsWritten) {
  auto graph = parse_graph(kJoint);
  EXPECT_EQ(print(*graph), kJoint);
  EXPECT_EQ(graph->name, "step");
  ASSERT_EQ(graph->inputs().size(), 5u);
  EXPECT_EQ(graph->inputs()[1].kind, InputKind::Parameter);
  EXPECT_TRUE(graph->inputs()[1].requires_grad);
  EXPECT_EQ(graph->inputs()[3].kind, InputKind::Constant);
  EXPECT_EQ(graph->inputs()[4].kind, InputKind::GradOutput);
  EXPECT_EQ(graph->inputs()[4].index, 0);
  EXPECT_EQ(graph->outputs()[1].kind, OutputKind::Mutation);
  EXPECT_EQ(graph->outputs()[1].index, 2);
  EXPECT_EQ(graph->outputs()[2].kind, OutputKind::Gradient);
  const auto nodes = graph->node_pointers();
  EXPECT_EQ(nodes[1]->tag, "checkpoint");
  EXPECT_EQ(nodes[0]->tag, "");
  EXPECT_EQ(nodes[3]->region, Region::Backward);
  EXPECT_EQ(nodes[1]->input(1)->dtype, DType::Float32);
  EXPECT_EQ(nodes[2]->input(1)->dtype, DType::Int64);
}

TEST(Text, EveryAttributeForm) {
  expect_exact(
      "g (x: f32[a,3*b]) => (y) {\n"
      "  y: f32[a] = Op<i=-3, e=((b)//(4)) + 2*a, l=[], dims=[a,max(a,b),7], f=0.5, g=1e-05, "
      "inf=\"\", h=-inf, big=1e+300, z=-0.0, fl=[0.5,2.0,inf,nan], none=[]:f64, "
      "s=\"a\\\"\\\\b\\n\", "
      "to=bf16, sym=(f32), syms=[(inf),2], ph=@axis, empty={}> (x)\n"
      "}\n");
}

TEST(Text, AttributeTypes) {
  auto graph =
      parse_graph("g (x) => (y) { y = Op<a=1, b=1.0, c=[1], d=[1.0], e=f32, f=n, g=@q> (x) }");
  const Attrs& attrs = graph->node_pointers()[0]->attrs;
  EXPECT_EQ(attrs.integer("a"), 1);
  EXPECT_TRUE(std::holds_alternative<double>(*attrs.find("b")));
  EXPECT_EQ(attrs.integers("c"), std::vector<int64_t>{1});
  EXPECT_EQ(attrs.numbers("d"), std::vector<double>{1.0});
  EXPECT_EQ(attrs.dtype("e"), DType::Float32);
  EXPECT_EQ(attrs.dim("f"), DimExpr::symbol("n"));
  EXPECT_EQ(attrs.string("g"), "@q");
}

TEST(Text, NestedGraphs) {
  expect_exact(
      "g (x: f32[n]) => (y) {\n"
      "  y: f32[n] = If<body={inner (a: f32[n]) => (c) { b: f32[n] = Relu (a) c: f32[n] = Mul "
      "(b, {2*n}) }}, k=1> (x)\n"
      "}\n");
}

TEST(Text, GraphsThatNestWithoutEndAreRefused) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "(x) => (y) { y = Op<body={";
  EXPECT_NE(error_of("g " + text).find("nested at most"), std::string::npos);
}

TEST(Text, Literals) {
  expect_exact(
      "g (c: bool[2], x: f16[2], i: i64[2], u) => (a) {\n"
      "  a: f16[2] = Where (c, x, -inf)\n"
      "  b: i64[2] = Add (i, {2*n})\n"
      "  d: f16[2] = Pow (x, 2.0:i64)\n"
      "  e: bool[2] = And (c, 1.0)\n"
      "  f = Range (1.0:f32, {n}:i64)\n"
      "  h = Add (u, 0.1)\n"
      "  j: f16[2] = Clip (x, _, nan)\n"
      "  k: f16[2] = Add (x, -0.0)\n"
      "  l: f16[2] = Add (x, 0.0)\n"
      "}\n");
}

TEST(Text, NumbersRoundTrip) {
  for (double value : {0.1, 1.0 / 3.0, 1e-320, 1.7976931348623157e308, 5e-324, 123456789012345678.0,
                       -2.5, 1e22, std::nextafter(1.0, 2.0)}) {
    auto attr = parse_attr(number_text(value));
    ASSERT_TRUE(std::holds_alternative<double>(attr)) << number_text(value);
    EXPECT_EQ(std::get<double>(attr), value);
  }
  EXPECT_EQ(number_text(2), "2.0");
  EXPECT_EQ(number_text(1e30), "1e+30");
}

TEST(Text, OddNames) {
  expect_exact(
      "\"my graph\" (\"0.weight\": param f32[2], layers.0.w: param f32[2], \"_\", \"inf\": f32[]) "
      "=> (\"a b\", 0.5:f32, _, out 7: \"out\") {\n"
      "  \"a b\": f32[2] = Add (\"0.weight\", layers.0.w)\n"
      "  \"out\": f32[] = Op (\"_\", \"inf\", \"a b\")\n"
      "  = Sink (\"a b\")\n"
      "}\n");
}

TEST(Text, OutputNamesMayMeetAutomaticOnes) {
  expect_exact(
      "g (x: f32[4]) => (Split) {\n"
      "  Split_1: f32[2], Split: f32[2] = Split<axis=0> (x)\n"
      "  Relu_1: f32[2] = Relu (Split)\n"
      "  a: f32[2] = Relu (Split)\n"
      "  Relu: f32[2] = Neg (a)\n"
      "  literal: f32[2] = Add (a, 1.0)\n"
      "}\n");
}

TEST(Text, UnderscoreOutputsGetNames) {
  auto graph = parse_graph("g (x) => (y) { y, _, _ = LayerNormalization (x, _, x) z = Relu (y) }");
  const Node* node = graph->node_pointers()[0];
  EXPECT_EQ(node->outputs().size(), 3u);
  EXPECT_EQ(node->input(1), nullptr);
  EXPECT_NE(node->output(1)->name, node->output(2)->name);
}

TEST(Text, FreeLayoutCommentsAndAttributesBehind) {
  auto graph = parse_graph(
      "g(x:f32[2*n//2 , 3])=>(y){ // first\n t=Relu(x);y=Softmax(t)<axis=-1 , k = [1, 2]> // "
      "last\n}");
  EXPECT_EQ(print(*graph),
            "g (x: f32[n,3]) => (y) {\n  t = Relu (x)\n  y = Softmax<axis=-1, k=[1,2]> (t)\n}\n");
}

TEST(Text, WithoutTypesAndWithOrigins) {
  auto graph = parse_graph(kJoint);
  Node* first = graph->node_pointers()[0];
  first->origin = {"blocks.0.fc", "model.py:41"};
  EXPECT_EQ(print(*first, {.types = false, .origins = true}),
            "h = MatMul (x, w)  // blocks.0.fc  model.py:41");
  EXPECT_EQ(print(*parse_graph(print(*graph, {.origins = true}))), kJoint);
}

TEST(Text, NamesThatMeetArePrintedApart) {
  auto graph = parse_graph("g (x: f32[]) => (b) { a: f32[] = Relu (x) b: f32[] = Neg (a) }");
  graph->node_pointers()[1]->output()->name = "a";
  const std::string text = print(*graph);
  EXPECT_EQ(text, "g (x: f32[]) => (a_1) {\n  a: f32[] = Relu (x)\n  a_1: f32[] = Neg (a)\n}\n");
  EXPECT_EQ(print(*parse_graph(text)), text);
}

TEST(Text, ErrorsNameLineAndColumn) {
  EXPECT_EQ(error_of("g (x) => (y) {\n  y = Relu (z)\n}"),
            "[text 2:13] an operand must be defined before its use, but found 'z'");
  EXPECT_EQ(error_of("g (x) => (q) { y = Relu (x) }"),
            "[text 1:11] an operand must be defined before its use, but found 'q'");
  EXPECT_EQ(error_of("g (x, x) => () {}"),
            "[text 1:6] an input's name must be new, but found 'x' again");
  EXPECT_EQ(error_of("g (x) => () {\n\n y = Relu x }"), "[text 3:11] expected '(', but found 'x'");
  EXPECT_EQ(error_of("g (x: f33[]) => () {}"),
            "[text 1:7] expected an element type such as f32, but found 'f33'");
  EXPECT_EQ(error_of("g (x) => () { y = Relu<a=1, a=2> (x) }"),
            "[text 1:29] an attribute must be set once, but found 'a' again");
  EXPECT_EQ(error_of("g (x) => () { x = Relu (x) }"),
            "[text 1:15] a value must be defined once, but found 'x' again");
  EXPECT_EQ(error_of("g (x) => () { y = Relu (x)"),
            "[text 1:27] expected an output's name, but found the end of the text");
  EXPECT_EQ(error_of("g (x) => () {} more"),
            "[text 1:16] the text must end after the graph, but found 'more'");
  EXPECT_EQ(error_of("g (x) => () { y = Relu (x, 2*n) }"),
            "[text 1:28] a size as an operand must be in braces, but found '2*n'");
  EXPECT_NE(error_of("g (x: f32[2+]) => () {}").find("[text 1:11] "), std::string::npos);
  EXPECT_NE(error_of("g (x: f32[2+]) => () {}").find("[shape] "), std::string::npos);
}

}  // namespace
}  // namespace ortmodule
