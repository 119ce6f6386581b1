// Graphs and nodes that an idle session packs are the same when they are unpacked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/byte_pack.h"
#include "base/packed_bytes.h"
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
  const char* const texts[] = {"",     "layer.1/a", "layer.1/bc", "same",
                               "same", "",          "layer.1/a",  "sa"};
  for (const char* text : texts) writer.text(text);
  const std::string bytes(writer.bytes());
  ByteReader reader(bytes);
  for (int64_t each : ends) {
    EXPECT_EQ(reader.integer(), each);
    EXPECT_EQ(reader.number(), static_cast<uint64_t>(each));
  }
  EXPECT_TRUE(std::signbit(reader.real()));
  std::vector<std::string_view> read;
  for (const char* text : texts) EXPECT_EQ(read.emplace_back(reader.text()), text);
  for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i], texts[i]) << "texts stay";
  EXPECT_TRUE(reader.at_end());
}

TEST(Packed, BytesAreSmallAndTheSame) {
  std::string texts, noise;
  for (int i = 0; i < 4000; ++i) texts += "/encoder/layer." + std::to_string(i / 40) + "/output";
  uint32_t state = 1;
  for (int i = 0; i < 300'000; ++i) noise += static_cast<char>((state = state * 1664525 + 9) >> 24);
  for (const std::string& bytes : {std::string(), std::string("a\0b", 3), texts, noise}) {
    const PackedBytes packed(bytes);
    EXPECT_EQ(packed.unpacked(), bytes);
    PackedBytes moved;
    moved = PackedBytes(bytes);
    EXPECT_EQ(moved.unpacked(), bytes);
    EXPECT_LT(packed.size_bytes(), bytes.size() + 400);
  }
  EXPECT_LT(PackedBytes(texts).size_bytes(), texts.size() / 20);
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
                    {"value", OnnxTensor{.dtype = DType::Int8, .dims = {2}, .bytes = {"ab"}}},
                    {"texts", OnnxTensor{.dims = {1}, .element_type = 8, .strings = {"text"}}},
                    {"auto_pad", std::string("SAME_UPPER")}};
  nodes[0].metadata = {{"key", "value"}};
  nodes[0].rest = std::make_shared<const std::string>("doc");
  nodes[1].op = "If";
  nodes[1].attrs = {{"then_branch", std::make_shared<const OnnxGraph>()}};
  nodes[2].op = "f";
  nodes[2].domain = "custom";
  nodes[2].overload = "second";
  nodes[2].outputs = {"y", "z"};
  OnnxGraph graph;
  graph.nodes = nodes;
  const PackedNodes packed(graph);
  EXPECT_TRUE(graph.nodes.empty());
  packed.unpack_into(graph);
  const std::vector<OnnxNode>& unpacked = graph.nodes;
  ASSERT_EQ(unpacked.size(), nodes.size());
  EXPECT_EQ(unpacked[0].name, "first");
  EXPECT_EQ(unpacked[0].inputs, nodes[0].inputs);
  EXPECT_EQ(unpacked[0].metadata, nodes[0].metadata);
  EXPECT_EQ(*unpacked[0].rest, "doc");
  ASSERT_EQ(unpacked[0].attrs.size(), 6u);
  for (const auto& [name, attr] : nodes[0].attrs) {
    const auto found = std::find_if(unpacked[0].attrs.begin(), unpacked[0].attrs.end(),
                                    [&](const auto& each) { return each.first == name; });
    ASSERT_NE(found, unpacked[0].attrs.end()) << name;
    EXPECT_EQ(found->second.index(), attr.index()) << name;
  }
  EXPECT_EQ(std::get<std::vector<int64_t>>(unpacked[0].attrs[0].second),
            (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(std::get<double>(unpacked[0].attrs[1].second), 0.5);
  const auto& value = std::get<OnnxTensor>(unpacked[0].attrs[3].second);
  EXPECT_EQ(value.dims, std::vector<int64_t>{2});
  EXPECT_EQ(value.bytes.view(), "ab");
  EXPECT_EQ(std::get<OnnxTensor>(unpacked[0].attrs[4].second).strings[0], "text");
  using Subgraph = std::shared_ptr<const OnnxGraph>;
  EXPECT_EQ(std::get<Subgraph>(unpacked[1].attrs[0].second),
            std::get<Subgraph>(nodes[1].attrs[0].second));
  EXPECT_EQ(unpacked[2].domain, "custom");
  EXPECT_EQ(unpacked[2].overload, "second");
  EXPECT_EQ(unpacked[2].outputs, nodes[2].outputs);
}

TEST(Packed, TypesOfModelsAreTheSame) {
  const OnnxType listed{.kind = OnnxType::Kind::Sequence,
                        .element = std::make_shared<const OnnxType>()};
  const OnnxType sized{.kind = OnnxType::Kind::Tensor,
                       .dtype = DType::Float16,
                       .dims = std::vector<OnnxDim>{int64_t{-2}, std::string("n"), {}},
                       .element_type = 10};
  OnnxGraph graph;
  graph.values = {{"a", sized}, {"b", listed}, {"c", {.kind = OnnxType::Kind::Tensor}}};
  const PackedNodes packed(graph);
  EXPECT_TRUE(graph.values.empty());
  packed.unpack_into(graph);
  ASSERT_EQ(graph.values.size(), 3u);
  EXPECT_EQ(graph.values[0].name, "a");
  EXPECT_EQ(graph.values[0].type.dtype, DType::Float16);
  EXPECT_EQ(graph.values[0].type.element_type, 10);
  EXPECT_EQ(graph.values[0].type.dims, sized.dims);
  EXPECT_EQ(graph.values[1].type.element, listed.element);
  EXPECT_EQ(graph.values[2].type.kind, OnnxType::Kind::Tensor);
  EXPECT_FALSE(graph.values[2].type.dims);
}

TEST(Packed, ConstantsOfModelsKeepTheirBytesAlive) {
  auto file = std::make_shared<const std::string>("abcdefgh");
  const std::weak_ptr<const std::string> watched = file;
  static const char kOutside[] = "outside";
  OnnxGraph graph;
  graph.initializers = {
      {"w", {.dtype = DType::Int8, .dims = {2, 3}, .bytes = {file, {file->data() + 1, 6}, true}}},
      {"v", {.dtype = DType::UInt8, .dims = {1}, .bytes = {file, {file->data(), 1}, true}}},
      {"s", {.dims = {1}, .element_type = 8, .strings = {"text"}}},
      {"o", {.dtype = DType::Bool, .bytes = SharedBytes::borrowed(kOutside, 1)}},
      {"e", {.dtype = DType::Float32, .dims = {0}, .bytes = std::string("own"), .element_type = 1}},
  };
  file.reset();
  const PackedNodes packed(graph);
  EXPECT_TRUE(graph.initializers.empty());
  ASSERT_FALSE(watched.expired());
  packed.unpack_into(graph);
  ASSERT_EQ(graph.initializers.size(), 5u);
  const auto tensor = [&](size_t at) -> const OnnxTensor& { return graph.initializers[at].tensor; };
  EXPECT_EQ(graph.initializers[0].name, "w");
  EXPECT_EQ(tensor(0).dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensor(0).bytes.view(), "bcdefg");
  EXPECT_TRUE(tensor(0).bytes.mapped());
  EXPECT_EQ(tensor(1).bytes.view(), "a");
  EXPECT_EQ(tensor(1).dtype, DType::UInt8);
  EXPECT_EQ(tensor(2).strings, std::vector<std::string>{"text"});
  EXPECT_EQ(tensor(3).bytes.data(), kOutside);
  EXPECT_FALSE(tensor(3).bytes.owner());
  EXPECT_EQ(tensor(4).bytes.view(), "own");
  EXPECT_EQ(tensor(4).element_type, 1);
}

TEST(Packed, SessionsThatDoNotTrainKeepNoReports) {
  const auto reported = [](bool keep_graphs) {
    ExportedPiece piece;
    piece.graph = parse_graph(kGraph);
    infer(*piece.graph);
    for (int i = 0; i < 3; ++i) piece.arguments.push_back({BoundInput::Kind::Tensor, i, ""});
    piece.output_strides = {{DimExpr(1)}, {DimExpr(1), DimExpr(1)}};
    SessionOptions options;
    options.optimizer.training = false;
    options.keep_graphs = keep_graphs;
    const Session session(std::move(piece), options);
    return session.forward_report().rows.size() + session.joint_report().rows.size();
  };
  EXPECT_EQ(reported(false), 0u);
  EXPECT_GT(reported(true), 0u);
}

}  // namespace
}  // namespace ortmodule
