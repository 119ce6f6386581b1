// ONNX models from text-like structures through import, plan and run, without torch.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "inference/inference_session.h"
#include "onnx/onnx_types.h"
#include "test_inference_models.h"

namespace ortmodule::testing {
namespace {

class Ran {
 public:
  explicit Ran(OnnxModel model, int64_t threads = 1)
      : session_(session_of(std::move(model), threads)) {}

  std::vector<float> floats(const std::vector<HostFeed>& feeds, size_t output = 0) {
    results_ = session_.run(feeds);
    const HostTensor& result = results_.at(output).tensors.at(0);
    const auto* data = static_cast<const float*>(result.memory.data());
    return {data, data + element_count(result.sizes)};
  }
  const Sizes& sizes(size_t output = 0) const { return results_.at(output).tensors.at(0).sizes; }
  InferenceSession& session() { return session_; }

 private:
  InferenceSession session_;
  std::vector<HostResult> results_;
};

OnnxModel mlp() {
  return model_of({{"x", tensor_type(DType::Float32, {std::string("batch"), int64_t{2}})}}, {"y"},
                  {node("Gemm", {"x", "w", "b"}, {"h"}), node("Relu", {"h"}, {"r"}),
                   node("ReduceSum", {"r", "axes"}, {"y"}, {{"keepdims", int64_t{0}}})},
                  {{"w", constant<float>(DType::Float32, {2, 3}, {1, 2, 3, 4, 5, 6})},
                   {"b", constant<float>(DType::Float32, {3}, {0, -10, 1})},
                   {"axes", constant<int64_t>(DType::Int64, {1}, {1})}});
}

TEST(Inference, RunsAModelForEveryBatchAndPredictsItsMemory) {
  Ran ran(mlp());
  for (int64_t batch : {1, 3, 2, 3, 1}) {
    std::vector<float> x;
    for (int64_t i = 0; i < batch * 2; ++i) x.push_back(static_cast<float>(i));
    const std::vector<HostFeed> feeds = {view(x, {batch, 2})};
    const InferenceMemory predicted = ran.session().memory(feeds);
    const std::vector<float> y = ran.floats(feeds);
    ASSERT_EQ(ran.sizes(), Sizes{batch});
    for (int64_t i = 0; i < batch; ++i) {
      const auto a = static_cast<float>(2 * i), b = static_cast<float>(2 * i + 1);
      const float expected = std::max(0.0f, a + 4 * b) + std::max(0.0f, 2 * a + 5 * b - 10) +
                             std::max(0.0f, 3 * a + 6 * b + 1);
      EXPECT_FLOAT_EQ(y[static_cast<size_t>(i)], expected);
    }
    EXPECT_EQ(ran.session().last_peak_bytes(), predicted.peak);
    EXPECT_TRUE(predicted.exact);
  }
}

TEST(Inference, ArithmeticOnSizesLeavesNoNodes) {
  // y = x reshaped to [batch, -1] by Shape, Gather and Concat
  Ran ran(model_of({{"x", tensor_type(DType::Float32, {std::string("n"), int64_t{2}, int64_t{3}})}},
                   {"y"},
                   {node("Shape", {"x"}, {"s"}), node("Gather", {"s", "zero"}, {"n"}),
                    node("Unsqueeze", {"n", "zero_list"}, {"n1"}),
                    node("Concat", {"n1", "rest"}, {"t"}, {{"axis", int64_t{0}}}),
                    node("Reshape", {"x", "t"}, {"y"})},
                   {{"zero", constant<int64_t>(DType::Int64, {}, {0})},
                    {"zero_list", constant<int64_t>(DType::Int64, {1}, {0})},
                    {"rest", constant<int64_t>(DType::Int64, {1}, {-1})}}));
  std::vector<float> x(24);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  EXPECT_EQ(ran.floats({view(x, {4, 2, 3})}), x);
  EXPECT_EQ(ran.sizes(), (Sizes{4, 6}));
  const std::string plan = ran.session().plan_text({view(x, {4, 2, 3})});
  EXPECT_EQ(plan.find("Shape"), std::string::npos) << plan;
}

TEST(Inference, TheContentOfAShapeInputIsPartOfThePlan) {
  Ran ran(model_of({{"x", tensor_type(DType::Float32, {int64_t{6}})},
                    {"shape", tensor_type(DType::Int64, {int64_t{2}})}},
                   {"y"}, {node("Reshape", {"x", "shape"}, {"y"})}));
  const std::vector<float> x = {0, 1, 2, 3, 4, 5};
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 3}, {3, 2}, {6, -1}, {1, 6}, {3, 2}}) {
    EXPECT_EQ(ran.floats({view(x, {6}), HostTensorView{DType::Int64, {2}, shape.data()}}), x);
    EXPECT_EQ(ran.sizes()[0], shape[0]);
  }
}

TEST(Inference, BranchesOnSizesAreDecidedAtImport) {
  auto branch = [](const char* op) {
    auto graph = std::make_shared<OnnxGraph>();
    graph->nodes = {node(op, {"x"}, {"z"})};
    graph->outputs = {{"z", {}}};
    return std::shared_ptr<const OnnxGraph>(graph);
  };
  Ran ran(model_of({{"x", tensor_type(DType::Float32, {std::string("n")})}}, {"y"},
                   {node("Size", {"x"}, {"n"}), node("Greater", {"n", "three"}, {"c"}),
                    node("If", {"c"}, {"y"},
                         {{"then_branch", branch("Neg")}, {"else_branch", branch("Identity")}})},
                   {{"three", constant<int64_t>(DType::Int64, {}, {3})}}));
  const std::vector<float> x = {1, 2, 3, 4, 5};
  EXPECT_EQ(ran.floats({view(x, {2})}), (std::vector<float>{1, 2}));
  EXPECT_EQ(ran.floats({view(x, {4})}), (std::vector<float>{-1, -2, -3, -4}));
  EXPECT_EQ(ran.floats({view(x, {3})}), (std::vector<float>{1, 2, 3}));
}

TEST(Inference, ComputesWhatDependsOnWeightsOnce) {
  // y = x * relu(w), z = x + v' with a transposed v, which is a view and stays in the model
  Ran ran(model_of({{"x", tensor_type(DType::Float32, {std::string("n"), int64_t{2}})}}, {"y", "z"},
                   {node("Relu", {"w"}, {"f"}), node("Mul", {"x", "f"}, {"y"}),
                    node("Transpose", {"v"}, {"t"}, {{"perm", std::vector<int64_t>{1, 0}}}),
                    node("Add", {"x", "t"}, {"z"})},
                   {{"w", constant<float>(DType::Float32, {1, 2}, {-2, 3})},
                    {"v", constant<float>(DType::Float32, {2, 1}, {10, 20})}}));
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(ran.floats({view(x, {2, 2})}), (std::vector<float>{0, 6, 0, 12}));
  EXPECT_EQ(ran.floats({view(x, {2, 2})}, 1), (std::vector<float>{11, 22, 13, 24}));
  const std::string plan = ran.session().plan_text({view(x, {2, 2})});
  EXPECT_EQ(plan.find("Relu"), std::string::npos) << plan;
  EXPECT_NE(plan.find("constant_0"), std::string::npos) << plan;
  EXPECT_EQ(ran.floats({view(x, {3, 2})}, 1), (std::vector<float>{11, 22, 13, 24, 15, 26}));
  EXPECT_EQ(ran.session().model().weight_bytes(), 2 * 4 + 2 * 4) << "v, and the constant";
}

TEST(Inference, PacksWeightsOfConvolutionsOnce) {
  // Each output of the second convolution is of a channel of its own: a block of channels.
  std::vector<float> w(5 * 2 * 3), v(5 * 1);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i) + 1;
  Ran ran(model_of({{"x", tensor_type(DType::Float32, {int64_t{1}, int64_t{2}, std::string("n")})}},
                   {"y"},
                   {node("Conv", {"x", "w"}, {"c"}), node("Relu", {"c"}, {"h"}),
                    node("Conv", {"h", "v"}, {"y"}, {{"group", int64_t{5}}})},
                   {{"w", constant<float>(DType::Float32, {5, 2, 3}, w)},
                    {"v", constant<float>(DType::Float32, {5, 1, 1}, v)}}));
  for (int64_t n : {4, 9}) {
    std::vector<float> x, expected;
    for (int64_t i = 0; i < 2 * n; ++i) x.push_back(static_cast<float>(i % 5) - 1);
    for (size_t o = 0; o < 5; ++o)
      for (int64_t p = 0; p < n - 2; ++p) {
        float sum = 0;
        for (size_t c = 0; c < 2; ++c)
          for (size_t k = 0; k < 3; ++k)
            sum +=
                w[(o * 2 + c) * 3 + k] * x[c * static_cast<size_t>(n) + static_cast<size_t>(p) + k];
        expected.push_back(v[o] * std::max(sum, 0.0f));
      }
    EXPECT_EQ(ran.floats({view(x, {1, 2, n})}), expected);
    const std::string plan = ran.session().plan_text({view(x, {1, 2, n})});
    EXPECT_EQ(plan.find("PackConvWeights"), std::string::npos) << plan;
    EXPECT_NE(plan.find("FusedConv"), std::string::npos) << plan;
    EXPECT_NE(plan.find("constant_0"), std::string::npos) << plan;
  }
  EXPECT_EQ(ran.session().model().weight_bytes(), 4 * (16 * 6 + 16));
}

TEST(Inference, NamesEveryNodeThatCannotRun) {
  const OnnxModel model = model_of(
      {{"x", tensor_type(DType::Float32, {int64_t{2}})}}, {"y", "z"},
      {node("Magic", {"x"}, {"y"}), node("Neg", {"y"}, {"u"}), node("Wonder", {"x"}, {"z"})});
  try {
    session_of(model);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("Magic 'y'"), std::string::npos) << text;
    EXPECT_NE(text.find("Wonder 'z'"), std::string::npos) << text;
    EXPECT_EQ(text.find("Neg"), std::string::npos) << text;
  }
}

TEST(Inference, ThreadsShareASession) {
  Ran ran(mlp(), 2);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 1; t <= 4; ++t)
    threads.emplace_back([&, t] {
      const auto batch = static_cast<int64_t>(t);
      const std::vector<float> x(static_cast<size_t>(2 * batch), 1.0f);
      for (int i = 0; i < 50; ++i) {
        const std::vector<HostResult> y = ran.session().run({view(x, {batch, 2})});
        const auto* data = static_cast<const float*>(y[0].tensors[0].memory.data());
        for (int64_t k = 0; k < batch; ++k)
          if (data[k] != 5 + 10) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(WorkerPool, CoversEachItemOnceAndPassesExceptionsOn) {
  WorkerPool pool(3);
  const ParallelFor parallel = pool.parallel_for();
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> seen(100);
    parallel(100, 7, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      parallel(3, 1, [](int64_t, int64_t) {});  // a loop inside of a loop
    });
    for (const auto& count : seen) ASSERT_EQ(count, 1);
  }
  EXPECT_THROW(parallel(10, 1,
                        [](int64_t begin, int64_t) {
                          if (begin > 2) throw Error("stop");
                        }),
               Error);
  EXPECT_FALSE(WorkerPool(1).parallel_for());
}

}  // namespace
}  // namespace ortmodule::testing
