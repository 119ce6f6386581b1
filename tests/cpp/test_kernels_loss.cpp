#include <limits>

#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct LossCase {
  Sizes scores;
  std::string reduction;
  double smoothing;
  bool weighted;
};

// The loss and its gradient by their definitions.
struct LossReference {
  std::vector<double> loss, log_sum_exp, dscores;

  LossReference(const LossCase& c, const Tensor& scores, const Tensor& labels,
                const Tensor& weights, const Tensor& dloss, int64_t ignore) {
    const int64_t classes = c.scores[1], rows = labels.count();
    const int64_t inner = rows / std::max<int64_t>(c.scores[0], 1);
    auto place = [&](int64_t row, int64_t k) {
      return (row / inner * classes + k) * inner + row % inner;
    };
    auto weight = [&](int64_t k) { return c.weighted ? weights.get(k) : 1.0; };
    dscores.assign(static_cast<size_t>(scores.count()), 0);
    double total = 0, divisor = 0;
    for (int64_t row = 0; row < rows; ++row)
      if (labels.get(row) != static_cast<double>(ignore))
        divisor += weight(static_cast<int64_t>(labels.get(row)));
    if (c.reduction != "mean") divisor = 1;
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0, value = 0;
      for (int64_t k = 0; k < classes; ++k) sum += std::exp(scores.get(place(row, k)));
      const double lse = std::log(sum);
      log_sum_exp.push_back(lse);
      const int64_t label = static_cast<int64_t>(labels.get(row));
      const double g = dloss.get(c.reduction == "none" ? row : 0) / divisor;
      double mass = 0;
      for (int64_t k = 0; label != ignore && k < classes; ++k) {
        const double target =
            ((k == label ? 1 - c.smoothing : 0) + c.smoothing / static_cast<double>(classes)) *
            weight(k);
        mass += target;
        value += target * (lse - scores.get(place(row, k)));
        dscores[static_cast<size_t>(place(row, k))] -= g * target;
      }
      for (int64_t k = 0; k < classes; ++k)
        dscores[static_cast<size_t>(place(row, k))] +=
            g * mass * std::exp(scores.get(place(row, k)) - lse);
      loss.push_back(value);
      total += value;
    }
    if (c.reduction != "none") loss = {total / divisor};
  }
};

void check(const LossCase& c, DType dtype) {
  const int64_t ignore = -100;
  Sizes label_sizes = c.scores;
  label_sizes.erase(label_sizes.begin() + 1);
  Tensor scores = Tensor::random(dtype, c.scores, 1, -4, 4), labels(DType::Int64, label_sizes);
  for (int64_t i = 0; i < labels.count(); ++i)
    labels.set(i,
               i % 4 == 1 ? static_cast<double>(ignore) : static_cast<double>(i * 7 % c.scores[1]));
  Tensor weights = Tensor::random(dtype, {c.scores[1]}, 2, 0.1, 2);
  const Sizes loss_sizes = c.reduction == "none" ? label_sizes : Sizes{};
  Tensor loss(dtype, loss_sizes), dloss = Tensor::random(dtype, loss_sizes, 3, 0.5, 2);
  const DType statistics = dtype == DType::Float64 ? dtype : DType::Float32;
  Tensor lse(statistics, label_sizes), dscores(dtype, c.scores);
  const LossReference expected(c, scores, labels, weights, dloss, ignore);
  const Attrs attrs{
      {"ignore_index", ignore}, {"reduction", c.reduction}, {"label_smoothing", c.smoothing}};
  // In double the reference itself errs, having added thousands of terms one by one.
  const double slack = dtype == DType::Float64 ? 1000 : 1;
  Tensor* weight_operand = c.weighted ? &weights : nullptr;
  run_op("SoftmaxCrossEntropyLoss", attrs, {&scores, &labels, weight_operand}, {&loss, &lse}, [&] {
    expect_close(loss, expected.loss, 4 * slack, 1, "loss");
    expect_close(lse, expected.log_sum_exp, 4 * slack, 1, "log_sum_exp");
  });
  for (int64_t i = 0; i < lse.count(); ++i)
    lse.set(i, expected.log_sum_exp[static_cast<size_t>(i)]);
  run_op("SoftmaxCrossEntropyLossGrad", attrs, {&dloss, &scores, &labels, weight_operand, &lse},
         {&dscores}, [&] { expect_close(dscores, expected.dscores, 16 * slack, 1, "dscores"); });
}

TEST(SoftmaxCrossEntropyLoss, MatchesItsDefinition) {
  for (const Sizes& scores :
       {Sizes{1, 1}, Sizes{9, 13}, Sizes{6, 2100}, Sizes{5, 2101}, Sizes{3, 5, 2, 3},
        Sizes{2, 5, 7, 5}, Sizes{2, 3, 130}, Sizes{3, 16501}})  // several vectors a thread
    for (const char* reduction : {"mean", "sum", "none"})
      for (double smoothing : {0.0, 0.1})
        for (bool weighted : {false, true})
          for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16})
            check({scores, reduction, smoothing, weighted}, dtype);
}

TEST(SoftmaxCrossEntropyLoss, NamesABadLabel) {
  Tensor scores = Tensor::random(DType::Float32, {2, 3}, 1), labels(DType::Int64, {2});
  labels.set(0, 2);
  labels.set(1, 3);
  Tensor loss(DType::Float32, {}), lse(DType::Float32, {2});
  const std::vector<Tensor*> in{&scores, &labels, nullptr}, out{&loss, &lse};
  const StepFacts facts = facts_of({node_of("SoftmaxCrossEntropyLoss", {}, in, out)}, in, out);
  for (const KernelDef* def : kernels_of("SoftmaxCrossEntropyLoss")) {
    try {
      run_kernel(*def, facts, in, out);
      FAIL() << def->name;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "[SoftmaxCrossEntropyLoss] labels must lie in [0, 3) or be -100, but found 3 at "
                   "position 1");
    }
  }
}

// As torch: a row with NaN has a loss of NaN, -infinity elsewhere in a row is a probability of 0,
// and a row of nothing else is NaN. A row that does not count has no gradient, whatever it holds.
TEST(SoftmaxCrossEntropyLoss, TakesInfinitiesAndNan) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16})
    for (int64_t classes : {5, 700})
      for (bool last : {true, false}) {  // whether classes are the last dimension
        const Sizes sizes = last ? Sizes{6, classes} : Sizes{1, classes, 6};
        const Sizes rows = last ? Sizes{6} : Sizes{1, 6};
        Tensor scores = Tensor::random(dtype, sizes, 1), labels(DType::Int32, rows);
        auto place = [&](int64_t row, int64_t k) { return last ? row * classes + k : k * 6 + row; };
        for (int64_t i = 0; i < 6; ++i) labels.set(i, i == 5 ? -100 : 2);
        scores.set(place(1, 3), std::nan(""));
        scores.set(place(2, 3), -kInfinity);
        scores.set(place(3, 3), kInfinity);
        for (int64_t k = 0; k < classes; ++k) scores.set(place(4, k), -kInfinity);
        scores.set(place(5, 3), std::nan(""));
        Tensor loss(dtype, rows), lse(dtype == DType::Float64 ? dtype : DType::Float32, rows);
        run_op("SoftmaxCrossEntropyLoss", {{"reduction", "none"}}, {&scores, &labels, nullptr},
               {&loss, &lse}, [&] {
                 EXPECT_TRUE(std::isfinite(loss.get(0)));
                 EXPECT_TRUE(std::isnan(loss.get(1)));
                 EXPECT_TRUE(std::isfinite(loss.get(2)));
                 EXPECT_TRUE(std::isnan(loss.get(3)));
                 EXPECT_TRUE(std::isnan(loss.get(4)));
                 EXPECT_EQ(lse.get(4), -kInfinity);
                 EXPECT_EQ(loss.get(5), 0);
               });
        Tensor dloss = Tensor::random(dtype, rows, 2), dscores(dtype, sizes);
        run_op("SoftmaxCrossEntropyLossGrad", {{"reduction", "none"}},
               {&dloss, &scores, &labels, nullptr, &lse}, {&dscores}, [&] {
                 for (int64_t k = 0; k < classes; ++k) {
                   EXPECT_TRUE(std::isfinite(dscores.get(place(0, k))));
                   EXPECT_TRUE(std::isnan(dscores.get(place(1, k))));
                   EXPECT_TRUE(std::isnan(dscores.get(place(4, k))));
                   EXPECT_EQ(dscores.get(place(5, k)), 0);
                 }
                 EXPECT_EQ(dscores.get(place(2, 3)), 0);
               });
      }
}

}  // namespace
}  // namespace ortmodule::testing
