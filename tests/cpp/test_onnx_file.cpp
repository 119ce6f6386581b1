#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "exporter/onnx_export.h"
#include "ir/text.h"
#include "onnx/onnx_reader.h"
#include "onnx/onnx_rule.h"

namespace ortmodule {
namespace {

namespace fs = std::filesystem;

class OnnxFile : public testing::Test {
 protected:
  OnnxFile() : folder_(fs::temp_directory_path() / str("ortmodule_onnx_", getpid())) {
    fs::create_directories(folder_);
  }
  ~OnnxFile() override { fs::remove_all(folder_); }

  std::string path() const { return (folder_ / "model.onnx").string(); }

  size_t file_count() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  void expect_exact(std::string_view text) {
    auto graph = parse_graph(text);
    save_onnx(*graph, path());
    EXPECT_EQ(print(*load_onnx(path())), print(*graph));
  }

 private:
  fs::path folder_;
};

constexpr std::string_view kJoint =
    R"(step (x: f32[batch,64], "0.w": param grad f32[64,64], n: buffer i64[], c: const bf16[2], g: dy 0 f32[batch,64]) => (y, mutate 2: m, grad 1: dw, out 7: 0.1:f64, _) {
  h: f32[batch,64] = MatMul (x, "0.w")
  tag checkpoint: y: f32[batch,64] = Dropout<ratio=0.1, rng=4> (h)
  m: i64[] = Add (n, 1.0)
  s: f32[batch*2] = ATen<operator="aten.foo", arg_n=2*batch, arg_l=[batch,1], arg_d=bf16> (h, _, c)
  z: f32[batch,64] = CustomGradient<body={b (p: f32[batch,64]) => (q) { q: f32[batch,64] = Neg (p) }}, outputs=1, inputs=0> (h)
  backward: d: f32[batch,64] = DropoutGrad<ratio=0.1, rng=4> (g)
  backward: t: f32[64,batch] = Transpose<perm=[1,0]> (x)
  backward: dw: f32[64,64] = MatMul (t, d)
}
)";

TEST_F(OnnxFile, RoundTripsAreExact) {
  expect_exact(kJoint);
  expect_exact("empty () => () {\n}\n");
  expect_exact("through (x: f32[]) => (x, x) {\n}\n");
  expect_exact(
      "unknown (x: f32[s], y: f32[s]) => (a) { a: f32[s] = SomethingNew<alpha=0.1, beta=1> (x, y) "
      "}");
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(OnnxFile, OriginsComeBack) {
  auto graph = parse_graph(kJoint);
  Node* node = graph->node_pointers()[1];
  node->origin = {"blocks.0.drop", "model.py:88"};
  save_onnx(*graph, path());
  auto loaded = load_onnx(path());
  EXPECT_EQ(loaded->node_pointers()[1]->origin.module, "blocks.0.drop");
  EXPECT_EQ(loaded->node_pointers()[1]->origin.source, "model.py:88");
  EXPECT_EQ(loaded->node_pointers()[0]->origin.module, "");
  EXPECT_EQ(loaded->node_pointers()[1]->tag, "checkpoint");
  EXPECT_EQ(loaded->node_pointers()[5]->region, Region::Backward);
}

TEST_F(OnnxFile, SizesAreReadFromInputs) {
  auto graph = parse_graph(
      "g (x: f32[2*n,m]) => (y, z) {\n"
      "  y: f32[n,2,m] = Reshape<shape=[n,2,m]> (x)\n"
      "  z: f32[2*n,m] = Mul (x, {k})\n"
      "}\n");
  const OnnxModel model = lower_to_onnx(*graph);
  ASSERT_EQ(model.graph.inputs.size(), 2u);  // no tensor has k: it is an input of its own
  EXPECT_EQ(model.graph.inputs[1].name, "k");
  EXPECT_EQ(model.graph.inputs[1].type.dtype, DType::Int64);
  std::vector<std::string> ops;
  for (const OnnxNode& node : model.graph.nodes) ops.push_back(node.op);
  EXPECT_EQ(ops, (std::vector<std::string>{"Shape", "Constant", "Div", "Shape", "Concat", "Reshape",
                                           "Constant", "Squeeze", "Cast", "Mul"}));
  save_onnx(*graph, path());
  EXPECT_EQ(print(*load_onnx(path())), print(*graph));
}

TEST_F(OnnxFile, UnreadOutputsAreLeftOut) {
  auto graph = parse_graph(
      "g (x: f32[n,5], t: i64[n]) => (l) {\n"
      "  l: f32[], z: f32[n] = SoftmaxCrossEntropyLoss<ignore_index=-100, reduction=\"mean\", "
      "label_smoothing=0.0> (x, t, _)\n"
      "}\n");
  const OnnxModel model = lower_to_onnx(*graph);
  ASSERT_EQ(model.graph.nodes.size(), 1u);
  EXPECT_EQ(model.graph.nodes[0].outputs, std::vector<std::string>{"l"});
  EXPECT_EQ(model.graph.nodes[0].inputs.size(), 2u);
}

TEST_F(OnnxFile, InitializersAndExternalData) {
  auto graph = parse_graph(
      "g (x: f32[n,512], w: param f32[512], b: param f32[4]) => (y) {\n"
      "  y: f32[n,512] = Add (x, w)\n"
      "}\n");
  const std::vector<float> w(512, 0.5f);
  const std::vector<float> b(4, 1.0f);
  OnnxSaveOptions options;
  options.initializers["w"] = {w.data(), w.size() * sizeof(float)};
  options.initializers["b"] = {b.data(), b.size() * sizeof(float)};
  save_onnx(*graph, path(), options);
  EXPECT_EQ(file_count(), 1u);
  EXPECT_EQ(read_onnx_model(path()).graph.initializers.size(), 2u);
  EXPECT_EQ(print(*load_onnx(path())), print(*graph));
  options.placement.threshold = 100;
  save_onnx(*graph, path(), options);
  EXPECT_EQ(file_count(), 2u);
  std::ifstream data(path() + ".data", std::ios::binary);
  float first = 0;
  data.read(reinterpret_cast<char*>(&first), sizeof(first));
  EXPECT_EQ(first, 0.5f);
  EXPECT_EQ(fs::file_size(path() + ".data"), 2048u);  // b is small and stays in the model
  options.initializers["w"].bytes = 4;
  EXPECT_THROW(save_onnx(*graph, path(), options), Error);
  EXPECT_EQ(file_count(), 2u);
}

TEST_F(OnnxFile, FailuresLeaveTheOldFile) {
  auto graph = parse_graph("g (x: f32[]) => (x) {\n}\n");
  save_onnx(*graph, path());
  EXPECT_THROW(save_onnx(*graph, path() + "/below/model.onnx"), Error);
  EXPECT_EQ(print(*load_onnx(path())), print(*graph));
  EXPECT_THROW(load_onnx(path() + ".missing"), Error);
  std::ofstream(path(), std::ios::trunc) << "no model";
  EXPECT_THROW(load_onnx(path()), Error);
}

TEST(OnnxBuilder, SixteenBitScalars) {
  auto bits = [](double value, DType dtype) {
    uint16_t result = 0;
    std::memcpy(&result, encode_scalar(value, dtype).data(), 2);
    return result;
  };
  EXPECT_EQ(bits(1.0, DType::Float16), 0x3c00);
  EXPECT_EQ(bits(-2.5, DType::Float16), 0xc100);
  EXPECT_EQ(bits(0.1, DType::Float16), 0x2e66);
  EXPECT_EQ(bits(65504.0, DType::Float16), 0x7bff);
  EXPECT_EQ(bits(65519.0, DType::Float16), 0x7bff);
  EXPECT_EQ(bits(65520.0, DType::Float16), 0x7c00);
  EXPECT_EQ(bits(std::ldexp(1.0, -24), DType::Float16), 0x0001);
  EXPECT_EQ(bits(std::ldexp(1.0, -25), DType::Float16), 0x0000);
  EXPECT_EQ(bits(std::ldexp(1023.5, -24), DType::Float16), 0x0400);
  EXPECT_EQ(bits(-INFINITY, DType::Float16), 0xfc00);
  EXPECT_EQ(bits(-0.0, DType::Float16), 0x8000);
  EXPECT_EQ(bits(0.1, DType::BFloat16), 0x3dcd);
  EXPECT_EQ(bits(1.0, DType::BFloat16), 0x3f80);
  EXPECT_TRUE(is_exact_in(0.5, DType::Float16));
  EXPECT_FALSE(is_exact_in(0.1, DType::Float16));
  EXPECT_FALSE(is_exact_in(257.0, DType::BFloat16));
  EXPECT_TRUE(is_exact_in(-INFINITY, DType::BFloat16));
  EXPECT_TRUE(is_exact_in(0.1, DType::Float32));
}

TEST(OnnxBuilder, EveryFloat16RoundTrips) {
  for (unsigned bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const int fraction = static_cast<int>(bits & 1023u);
    const double value =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
    uint16_t encoded = 0;
    std::memcpy(&encoded, encode_scalar(value, DType::Float16).data(), 2);
    ASSERT_EQ(encoded, bits);
    ASSERT_TRUE(is_exact_in(value, DType::Float16));
  }
}

}  // namespace
}  // namespace ortmodule
