// How convolutions are described to a library, and what is refused; needs no device.
#include <gtest/gtest.h>

#include "kernels/convolution_problem.h"
#include "kernels/step_part.h"

namespace ortmodule {
namespace {

OperandFacts row_major(const Sizes& sizes, DType dtype = DType::Float32) {
  return {dtype, {sizes, contiguous_strides(sizes), 0}};
}

OperandFacts channels_last(const Sizes& sizes) {
  const std::vector<int> strides = dense_strides({sizes.begin(), sizes.end()}, true);
  return {DType::Float32, {sizes, {strides.begin(), strides.end()}, 0}};
}

Attrs window(size_t spatial, Dims pads) {
  return {{"group", 1},
          {"strides", Dims(spatial, 2)},
          {"dilations", Dims(spatial, 3)},
          {"pads", std::move(pads)}};
}

StepFacts conv(const OperandFacts& x, const OperandFacts& w, const Sizes& y) {
  const size_t spatial = y.size() - 2;
  return facts_of_node("Conv", window(spatial, Dims(2 * spatial, 1)), {x, w}, {row_major(y)});
}

TEST(ConvolutionProblem, OneDimensionBecomesTwo) {
  const StepFacts facts = conv(row_major({2, 3, 9}), row_major({4, 3, 3}), {2, 4, 3});
  ASSERT_FALSE(convolution_unsupported(facts));
  const ConvolutionProblem problem = convolution_problem(facts);
  EXPECT_EQ(problem.x, (std::vector<int>{2, 3, 1, 9}));
  EXPECT_EQ(problem.w, (std::vector<int>{4, 3, 1, 3}));
  EXPECT_EQ(problem.pads, (std::vector<int>{0, 1}));
  EXPECT_EQ(problem.strides, (std::vector<int>{1, 2}));
  EXPECT_EQ(problem.dilations, (std::vector<int>{1, 3}));
  EXPECT_FALSE(problem.channels_last);
}

TEST(ConvolutionProblem, ResultsLieAsTheOperands) {
  const Sizes x = {2, 3, 9, 8}, w = {4, 3, 3, 3}, y = {2, 4, 3, 2};
  const StepFacts rows = conv(row_major(x), row_major(w), y);
  EXPECT_EQ(convolution_strides(rows), std::vector<Sizes>{contiguous_strides(y)});
  const StepFacts last = conv(channels_last(x), channels_last(w), y);
  ASSERT_FALSE(convolution_unsupported(last));
  EXPECT_TRUE(convolution_problem(last).channels_last);
  EXPECT_EQ(convolution_strides(last), (std::vector<Sizes>{{24, 1, 8, 4}}));
  // One channel is row-major and channels-last at once.
  const StepFacts one = conv(row_major({2, 1, 9, 8}), channels_last({4, 1, 3, 3}), y);
  EXPECT_FALSE(convolution_unsupported(one));
}

TEST(ConvolutionProblem, IsRefusedOnceItHasNoAlgorithm) {
  const Sizes x = {2, 3, 11, 13}, w = {4, 3, 3, 3}, y = {2, 4, 4, 5};
  const StepFacts facts = conv(row_major(x), row_major(w), y);
  ASSERT_FALSE(convolution_unsupported(facts));
  refuse_convolution(facts);
  EXPECT_NE(convolution_unsupported(facts).value_or("").find("no algorithm"), std::string::npos);
  EXPECT_FALSE(convolution_unsupported(conv(channels_last(x), channels_last(w), y)));
  EXPECT_FALSE(
      convolution_unsupported(conv(row_major({3, 3, 11, 13}), row_major(w), {3, 4, 4, 5})));
}

TEST(ConvolutionProblem, RefusesWithAReason) {
  const Sizes x = {2, 3, 9, 8}, w = {4, 3, 3, 3}, y = {2, 4, 3, 2};
  const auto reason = [](const StepFacts& facts) {
    return convolution_unsupported(facts).value_or("");
  };
  EXPECT_EQ(reason(conv(row_major(x), channels_last(w), y)),
            "some operands are channels-last, others row-major");
  EXPECT_EQ(reason(conv(row_major({0, 3, 9, 8}), row_major(w), {0, 4, 3, 2})), "a tensor is empty");
  EXPECT_EQ(reason(conv(row_major({65536, 3, 128, 128}), row_major(w), {65536, 4, 64, 64})),
            "a tensor is too large for 32-bit sizes");
  StepFacts uneven = conv(row_major(x), row_major(w), y);
  uneven.nodes[0].attrs = window(2, {1, 1, 0, 1});
  EXPECT_EQ(reason(uneven), "padding must be equal on both sides");
}

TEST(ConvolutionProblem, GradientsReadTheThreeTensors) {
  const Sizes x = {2, 3, 9, 8}, w = {4, 3, 3, 3}, y = {2, 4, 3, 2};
  const StepFacts facts = facts_of_node("ConvGrad", window(2, {1, 1, 1, 1}),
                                        {channels_last(y), channels_last(x), channels_last(w)},
                                        {row_major(x), row_major(w), row_major({4})});
  ASSERT_FALSE(convolution_unsupported(facts));
  const ConvolutionProblem problem = convolution_problem(facts);
  EXPECT_EQ(problem.y, (std::vector<int>{2, 4, 3, 2}));
  EXPECT_EQ(convolution_strides(facts),
            (std::vector<Sizes>{channels_last(x).layout.strides, channels_last(w).layout.strides}));
  EXPECT_EQ(by_channel(problem.y, problem).layout.sizes, (Sizes{12, 4}));
}

TEST(ConvolutionProblem, ScratchIsBounded) {
  ConvolutionProblem problem;
  problem.dtype = DType::Float32;
  problem.x = problem.y = {1, 1, 8, 8};
  problem.w = {1, 1, 3, 3};
  EXPECT_EQ(convolution_workspace_bytes(problem), size_t{512} << 10);
  problem.x = problem.y = {8, 16, 64, 64};
  EXPECT_EQ(convolution_workspace_bytes(problem), size_t{2 * 8 * 16 * 64 * 64 * 4 + 256});
  problem.x = problem.y = {256, 64, 112, 112};
  EXPECT_EQ(convolution_workspace_bytes(problem), size_t{64} << 20);
}

}  // namespace
}  // namespace ortmodule
