// What sessions say about the memory of runs, compared with the runs.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "inference/inference_session.h"
#include "optimizer/pattern.h"
#include "test_inference_models.h"

namespace ortmodule::testing {
namespace {

constexpr int64_t kWidth = 256;

// Two products, between which a wide value lives.
OnnxModel wide_between() {
  return model_of({{"x", tensor_type(DType::Float32, {std::string("n"), kWidth})}}, {"y"},
                  {node("MatMul", {"x", "w"}, {"m"}), node("Tanh", {"m"}, {"t"}),
                   node("MatMul", {"t", "v"}, {"y"})},
                  {{"w", constant<float>(DType::Float32, {kWidth, 4 * kWidth},
                                         std::vector<float>(4 * kWidth * kWidth, 0.01f))},
                   {"v", constant<float>(DType::Float32, {4 * kWidth, kWidth},
                                         std::vector<float>(4 * kWidth * kWidth, 0.01f))}});
}

InferenceSession limited_session(int64_t limit_bytes) {
  InferenceOptions options;
  options.threads = 1;
  options.seed = 1;
  options.memory.limit_bytes = limit_bytes;
  return {std::make_shared<LoadedModel>(wide_between()), std::move(options)};
}

TEST(InferenceMemory, OfARunInPartsIsWhatItTakes) {
  constexpr int64_t kRows = 24;
  const std::vector<float> x(kRows * kWidth, 1.0f);
  const std::vector<HostFeed> feeds = {view(x, {kRows, kWidth})};
  InferenceSession whole = limited_session(0);
  const InferenceMemory all = whole.memory(feeds);
  const std::vector<HostResult> expected = whole.run(feeds);
  InferenceSession session = limited_session(all.total - all.block / 2);
  const InferenceMemory memory = session.memory(feeds);
  EXPECT_EQ(memory.parts, 2);
  const std::vector<HostResult> y = session.run(feeds);
  EXPECT_EQ(session.last_peak_bytes(), memory.peak);
  EXPECT_EQ(std::memcmp(y[0].tensors[0].memory.data(), expected[0].tensors[0].memory.data(),
                        x.size() * sizeof(float)),
            0);
}

TEST(InferenceMemory, AnIdleSessionForgetsWhatWasReadOfRules) {
  const RuleSet rules = {{.name = "rule",
                          .pattern = "(x) => (y) { y = Exp (x) }",
                          .replacement = "(x) => (y) { y = Log (x) }"}};
  std::weak_ptr<const std::vector<CompiledRule>> compiled = rules.compiled();
  EXPECT_FALSE(compiled.expired());
  InferenceSession session = limited_session(0);
  const std::vector<float> x(kWidth, 1.0f);
  session.run({view(x, {1, kWidth})});
  for (int i = 0; i < 500 && !compiled.expired(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(compiled.expired());
  EXPECT_EQ(rules.compiled()->size(), 1u) << "they are read again";
}

// The rows in reverse order, which no kernel can read where they are.
HostFeed backwards(const std::vector<float>& x, int64_t rows) {
  HostTensorView tensor = view(x, {rows, kWidth});
  tensor.data = x.data() + (rows - 1) * kWidth;
  tensor.strides = {-kWidth, 1};
  return tensor;
}

TEST(InferenceMemory, TheLargestSizeCountsCopiesOfFeeds) {
  constexpr int64_t kRows = 64;
  const std::vector<float> x(kRows * kWidth, 1.0f);
  InferenceSession session = limited_session(0);
  const int64_t limit = session.memory({view(x, {32, kWidth})}).total;
  EXPECT_EQ(session.largest("n", limit, {view(x, {kRows, kWidth})}), 32);
  const int64_t most = session.largest("n", limit, {backwards(x, kRows)});
  EXPECT_LT(most, 32);
  EXPECT_LE(session.memory({backwards(x, most)}).total, limit);
  EXPECT_GT(session.memory({backwards(x, most + 1)}).total, limit);
}

}  // namespace
}  // namespace ortmodule::testing
