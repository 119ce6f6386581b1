// Graphs and nodes that an idle session packs are the same when they are unpacked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/byte_pack.h"
#include "ir/text.h"
#include "lower/packed_lowered.h"
#include "onnx/packed_nodes.h"
#include "ops/emit.h"
#include "ops/op_def.h"
#include "plan/step_builder.h"
#include "session.h"

namespace ortmodule {
namespace {

TEST(Packed, BytesHoldAllNumbers) {
  ByteWriter writer;
  const int64_t ends[] = {0, 1, -1, 127, 128, INT64_MAX, INT64_MIN};
  for (int64_t each : ends) {
    writer.integer(each);
    writer.number(static_cast<uint64_t>(each));
  }
  writer.real(-0.0);
  for (const char* text : {"", "same", "same", ""}) writer.text(text);
  const std::string bytes = writer.take();
  ByteReader reader(bytes);
  for (int64_t each : ends) {
    EXPECT_EQ(reader.integer(), each);
    EXPECT_EQ(reader.number(), static_cast<uint64_t>(each));
  }
  EXPECT_TRUE(std::signbit(reader.real()));
  for (const char* text : {"", "same", "same", ""}) EXPECT_EQ(reader.text(), text);
  EXPECT_TRUE(reader.at_end());
}

constexpr std::string_view kGraph =
    R"(g (x: f32[n,4], w: const f32[4,4], ids: i64[n]) => (y, mean) {
  p = MatMul (x, w)
  s = Sigmoid (p)
  a = Mul (s, 0.1)
  b = Add (a, {2*n + 1})
  t = Transpose<perm=[1,0]> (b)
  mean = ReduceMean<axes=[-1], keepdims=1> (b)
  g = Gather<axis=0> (b, ids)
  y = Reshape<shape=[4*n]> (g)
})";

std::string all_of(const Lowered& lowered) {
  std::string text = print(*lowered.graph, {.types = true, .origins = true});
  for (const StepNodes& step : lowered.steps) {
    for (const Node* node : step.nodes) text += node->output()->name + " ";
    text += std::to_string(step.form) + " " + std::to_string(step.symbols) + " " +
            std::to_string(step.pointwise) + std::to_string(step.reads_symbols) +
            std::to_string(step.op == &op_def(step.nodes.front()->op)) + "\n";
  }
  return text + std::to_string(lowered.forms) + " " + std::to_string(lowered.forward_steps);
}

TEST(Packed, LoweredGraphsAreTheSame) {
  std::unique_ptr<Graph> graph = parse_graph(kGraph);
  infer(*graph);
  size_t number = 0;
  for (const auto& node : graph->nodes())
    node->origin = {"layer" + std::to_string(number / 3), "node " + std::to_string(number++)};
  const Lowered lowered = lower(*graph, Device::Host);
  const PackedLowered packed(lowered);
  const auto unpacked = packed.unpacked();
  EXPECT_EQ(all_of(*unpacked), all_of(lowered));
  EXPECT_EQ(unpacked->symbols, lowered.symbols);
  EXPECT_EQ(unpacked->device, Device::Host);
  EXPECT_EQ(unpacked->graph->literals().size(), lowered.graph->literals().size());
  EXPECT_LT(packed.size_bytes(), 4000);
}

TEST(Packed, GraphsOfAttributesAreShared) {
  const auto graph = parse_graph(R"(g (x: f32[2]) => (y) {
    y: f32[2] = Body<body={b (a: f32[2]) => (a) {}}, to=f32, texts="some", list=[0.5,-1.0]> (x, _)
  })");
  const auto copy = PackedGraph(*graph).unpacked();
  EXPECT_EQ(print(*copy), print(*graph));
  const auto body = [](const Graph& of) { return of.nodes().front()->attrs.graph("body"); };
  EXPECT_EQ(body(*copy), body(*graph));
}

TEST(Packed, SessionsPlanFromPackedGraphs) {
  ExportedPiece piece;
  piece.graph = parse_graph(kGraph);
  infer(*piece.graph);
  for (int i = 0; i < 3; ++i) piece.arguments.push_back({BoundInput::Kind::Tensor, i, ""});
  piece.output_strides = {{DimExpr(1)}, {DimExpr(1), DimExpr(1)}};
  SessionOptions options;
  options.optimizer.training = false;
  options.optimizer.device = Device::Host;
  options.keep_graphs = false;
  Session session(std::move(piece), options);
  const auto plan_of = [&](int64_t rows) {
    const std::vector<Sizes> sizes = {{rows, 4}, {4, 4}, {rows}};
    const std::vector<Sizes> strides = {{4, 1}, {4, 1}, {1}};
    std::vector<LayoutView> arguments;
    for (size_t i = 0; i < sizes.size(); ++i) arguments.push_back({sizes[i], strides[i]});
    return session.plan_for({arguments, {}});
  };
  const int64_t whole = session.lowered_bytes();
  std::string before;
  {
    const auto entry = plan_of(3);
    before = print(*entry->program.plan);
    session.pack();  // the plan reads the graph
    EXPECT_EQ(session.lowered_bytes(), whole);
  }
  session.pack();  // the cache has the plan
  EXPECT_EQ(session.lowered_bytes(), whole);
  session.shrink_plans(0);
  session.pack();
  EXPECT_LT(session.lowered_bytes(), whole / 4);
  EXPECT_EQ(print(*plan_of(3)->program.plan), before);
  EXPECT_EQ(session.lowered_bytes(), whole);
  EXPECT_NE(print(*plan_of(5)->program.plan), before);
}

TEST(Packed, NodesOfModelsAreTheSame) {
  std::vector<OnnxNode> nodes(3);
  nodes[0].op = "Conv";
  nodes[0].name = "first";
  nodes[0].inputs = {"x", "", "b"};
  nodes[0].outputs = {"y"};
  nodes[0].attrs = {{"pads", std::vector<int64_t>{1, -1}},
                    {"alpha", 0.5},
                    {"group", int64_t{2}},
                    {"auto_pad", std::string("SAME_UPPER")}};
  nodes[0].metadata = {{"key", "value"}};
  nodes[0].rest = std::make_shared<const std::string>("doc");
  nodes[1].op = "If";
  nodes[1].attrs = {{"then_branch", std::make_shared<const OnnxGraph>()}};
  nodes[2].op = "f";
  nodes[2].domain = "custom";
  nodes[2].overload = "second";
  nodes[2].outputs = {"y", "z"};
  const std::vector<OnnxNode> unpacked = PackedNodes(nodes).unpacked();
  ASSERT_EQ(unpacked.size(), nodes.size());
  EXPECT_EQ(unpacked[0].name, "first");
  EXPECT_EQ(unpacked[0].inputs, nodes[0].inputs);
  EXPECT_EQ(unpacked[0].metadata, nodes[0].metadata);
  EXPECT_EQ(unpacked[0].rest, nodes[0].rest);
  ASSERT_EQ(unpacked[0].attrs.size(), 4u);
  for (const auto& [name, attr] : nodes[0].attrs) {
    const auto found = std::find_if(unpacked[0].attrs.begin(), unpacked[0].attrs.end(),
                                    [&](const auto& each) { return each.first == name; });
    ASSERT_NE(found, unpacked[0].attrs.end()) << name;
    EXPECT_EQ(found->second.index(), attr.index()) << name;
  }
  EXPECT_EQ(std::get<std::vector<int64_t>>(unpacked[0].attrs[0].second),
            (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(std::get<double>(unpacked[0].attrs[1].second), 0.5);
  using Subgraph = std::shared_ptr<const OnnxGraph>;
  EXPECT_EQ(std::get<Subgraph>(unpacked[1].attrs[0].second),
            std::get<Subgraph>(nodes[1].attrs[0].second));
  EXPECT_EQ(unpacked[2].domain, "custom");
  EXPECT_EQ(unpacked[2].overload, "second");
  EXPECT_EQ(unpacked[2].outputs, nodes[2].outputs);
}

}  // namespace
}  // namespace ortmodule
