// Functions and loops: what becomes nodes of the graph, and what is run step by step.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "inference/inference_session.h"
#include "test_inference_models.h"

namespace ortmodule::testing {
namespace {

std::vector<float> floats_of(const HostResult& result) {
  const HostTensor& tensor = result.tensors.at(0);
  const auto* data = static_cast<const float*>(tensor.memory.data());
  return {data, data + element_count(tensor.sizes)};
}

// y = f0(x), where each of `depth` functions calls the next one twice and the last one negates.
OnnxModel doubling_functions(int depth) {
  OnnxModel model = model_of({{"x", tensor_type(DType::Float32, {int64_t{2}})}}, {"y"},
                             {node("f0", {"x"}, {"y"})});
  model.graph.nodes[0].domain = "d";
  for (int i = 0; i <= depth; ++i) {
    OnnxFunction function;
    function.name = "f" + std::to_string(i);
    function.domain = "d";
    function.inputs = {"a"};
    function.outputs = {"c"};
    function.opsets = {{"", 21}, {"d", 1}};
    const std::string inner = i < depth ? "f" + std::to_string(i + 1) : "Neg";
    function.nodes = {node(inner, {"a"}, {"b"}), node(inner, {"b"}, {"c"})};
    if (i < depth)
      for (OnnxNode& each : function.nodes) each.domain = "d";
    model.functions.push_back(std::move(function));
  }
  model.opsets.push_back({"d", 1});
  return model;
}

std::string error_of_run(OnnxModel model) {
  const std::vector<float> x = {1, -2};
  try {
    InferenceSession session = session_of(std::move(model));
    session.run({view(x, {2})});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Control, FunctionsAreCountedBeforeTheyAreExpanded) {
  const std::vector<float> x = {1, -2};
  InferenceSession session = session_of(doubling_functions(3));
  EXPECT_EQ(floats_of(session.run({view(x, {2})}).at(0)), x);
  const std::string error = error_of_run(doubling_functions(50));
  EXPECT_NE(error.find("f0 'y': a model must have at most 1000000 nodes"), std::string::npos)
      << error;
  OnnxModel endless = doubling_functions(4);
  endless.functions[4].nodes = {node("f1", {"a"}, {"c"})};
  endless.functions[4].nodes[0].domain = "d";
  const std::string itself = error_of_run(std::move(endless));
  EXPECT_NE(itself.find("f0 'y': functions must not call themselves, but 'f1' does"),
            std::string::npos)
      << itself;
}

// Of operator set 8: operands have a batch, and come behind lengths. Too long to be unrolled.
TEST(Control, AScanWithABatchRunsStepByStep) {
  constexpr int64_t kSteps = 1500, kBatch = 2;
  auto body = std::make_shared<OnnxGraph>();
  const auto number = tensor_type(DType::Float32, {int64_t{1}});
  body->inputs = {{"sum", number}, {"each", number}};
  body->nodes = {node("Add", {"sum", "each"}, {"next"}), node("Neg", {"next"}, {"out"})};
  body->outputs = {{"next", number}, {"out", number}};
  for (const int64_t backward : {0, 1}) {
    OnnxModel model =
        model_of({{"s", tensor_type(DType::Float32, {kBatch, int64_t{1}})},
                  {"x", tensor_type(DType::Float32, {kBatch, std::string("t"), int64_t{1}})}},
                 {"sums", "parts"},
                 {node("Scan", {"", "s", "x"}, {"sums", "parts"},
                       {{"body", std::shared_ptr<const OnnxGraph>(body)},
                        {"num_scan_inputs", int64_t{1}},
                        {"directions", std::vector<int64_t>{backward}}})});
    model.opsets = {{"", 8}};
    InferenceSession session = session_of(std::move(model));
    std::vector<float> s = {10, 20}, x, sums = s, parts;
    for (int64_t i = 0; i < kBatch * kSteps; ++i) x.push_back(static_cast<float>(i % 7));
    for (size_t b = 0; b < kBatch; ++b)
      for (int64_t t = 0; t < kSteps; ++t) {
        const int64_t at = backward ? kSteps - 1 - t : t;
        sums[b] += x[b * kSteps + static_cast<size_t>(at)];
        parts.push_back(-sums[b]);
      }
    const std::vector<HostResult> results =
        session.run({view(s, {kBatch, 1}), view(x, {kBatch, kSteps, 1})});
    EXPECT_EQ(floats_of(results.at(0)), sums);
    EXPECT_EQ(floats_of(results.at(1)), parts);
    EXPECT_EQ(results.at(1).tensors.at(0).sizes, (Sizes{kBatch, kSteps, 1}));
  }
}

// Only what a long axis is padded with is looked up.
TEST(Control, AReflectedLongAxisNeedsNoIndexOfItsOwn) {
  constexpr int64_t kLong = 1 << 20;
  std::vector<float> x(kLong);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (const auto& [mode, before, after, last] :
       std::vector<std::tuple<std::string, float, int64_t, float>>{{"reflect", 2, 3, kLong - 4},
                                                                   {"edge", 0, 3, kLong - 1},
                                                                   {"wrap", kLong - 2, 3, 2},
                                                                   {"reflect", 2, -3, kLong - 4}}) {
    InferenceSession session =
        session_of(model_of({{"x", tensor_type(DType::Float32, {std::string("n")})}}, {"y"},
                            {node("Pad", {"x", "pads"}, {"y"}, {{"mode", mode}})},
                            {{"pads", constant<int64_t>(DType::Int64, {2}, {2, after})}}));
    const std::vector<float> y = floats_of(session.run({view(x, {kLong})}).at(0));
    ASSERT_EQ(y.size(), static_cast<size_t>(kLong + 2 + after));
    EXPECT_EQ(y[0], before) << mode;
    EXPECT_EQ(y[2], 0) << mode;
    EXPECT_EQ(y[3], 1) << mode;
    EXPECT_EQ(y.back(), last) << mode;
    EXPECT_LT(session.model().weight_bytes(), 1024) << mode;
  }
}

}  // namespace
}  // namespace ortmodule::testing
