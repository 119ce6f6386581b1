#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

// In double the reference errs about as much.
double ulps_of(DType dtype) { return dtype == DType::Float64 ? 128 : 8; }

constexpr DType kTypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16};

struct Split {
  int64_t outer = 1, n = 1, inner = 1;
};
Split split_of(const Sizes& sizes, int64_t axis) {
  Split s;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d)
    (d < axis ? s.outer : d == axis ? s.n : s.inner) *= sizes[static_cast<size_t>(d)];
  return s;
}

// Calls body(positions of a line along the axis).
void for_each_line(const Sizes& sizes, int64_t axis,
                   const std::function<void(const std::vector<size_t>&)>& body) {
  const Split s = split_of(sizes, axis);
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t i = 0; i < s.inner; ++i) {
      std::vector<size_t> line;
      for (int64_t j = 0; j < s.n; ++j)
        line.push_back(static_cast<size_t>((o * s.n + j) * s.inner + i));
      body(line);
    }
  }
}

std::vector<double> softmax(std::vector<double> x, const Sizes& sizes, int64_t axis, bool log) {
  for_each_line(sizes, axis, [&](const std::vector<size_t>& line) {
    double max = -INFINITY, sum = 0;
    for (size_t i : line) max = std::max(max, x[i]);
    for (size_t i : line) sum += std::exp(x[i] - max);
    for (size_t i : line) x[i] = log ? x[i] - max - std::log(sum) : std::exp(x[i] - max) / sum;
  });
  return x;
}

const std::vector<std::pair<Sizes, int64_t>> kShapes = {
    {{1}, 0},         {{7}, 0},           {{3, 1}, 1},          {{5, 33}, 1},
    {{4, 1500}, 1},   {{2, 5000}, 1},     {{3, 17, 5}, 1},      {{2, 3, 100, 19}, 2},
    {{6, 40}, 0},     {{0, 4}, 1},        {{2, 3, 4, 5, 7}, 4}, {{2, 70, 37}, 1},
    {{3, 2, 300}, 1}, {{2, 1100, 50}, 1}, {{40, 16}, 0},        {{3, 0, 20}, 1},
    {{35, 2}, 1},     {{37, 3}, 1},       {{18, 8}, 1},         {{19, 15}, 1},
    {{33, 16}, 1},    {{17, 17}, 1},      {{16, 31}, 1},        {{21, 63}, 1},
    {{17, 64}, 1},    {{3, 65}, 1},       {{5, 1000}, 1},       {{6, 1024}, 1},
    {{2, 2048}, 1},   {{2, 17000}, 1}};

TEST(Softmax, MatchesDouble) {
  for (const auto& [sizes, axis] : kShapes) {
    for (DType dtype : kTypes) {
      Tensor x = Tensor::random(dtype, sizes, 1, -8, 8), y(dtype, sizes);
      const int64_t from_back = axis - static_cast<int64_t>(sizes.size());
      run_op("Softmax", {{"axis", axis}}, {&x}, {&y}, [&] {
        expect_close(y, softmax(x.values(), sizes, axis, false), ulps_of(dtype), 1e-2, "Softmax");
      });
      run_op("LogSoftmax", {{"axis", from_back}}, {&x}, {&y}, [&] {
        expect_close(y, softmax(x.values(), sizes, axis, true), ulps_of(dtype), 1, "LogSoftmax");
      });
    }
  }
}

TEST(Softmax, HasTheRightGradient) {
  for (const auto& [sizes, axis] : kShapes) {
    for (DType dtype : kTypes) {
      Tensor x = Tensor::random(dtype, sizes, 1, -3, 3), dy = Tensor::random(dtype, sizes, 2);
      for (bool log : {false, true}) {
        Tensor y = Tensor::of(dtype, sizes, softmax(x.values(), sizes, axis, log)),
               dx(dtype, sizes);
        std::vector<double> expected(static_cast<size_t>(x.count()));
        for_each_line(sizes, axis, [&](const std::vector<size_t>& line) {
          double sum = 0;
          auto at = [](const Tensor& t, size_t i) { return t.get(static_cast<int64_t>(i)); };
          for (size_t i : line) sum += at(dy, i) * (log ? 1 : at(y, i));
          for (size_t i : line)
            expected[i] = log ? at(dy, i) - std::exp(at(y, i)) * sum : at(y, i) * (at(dy, i) - sum);
        });
        run_op(log ? "LogSoftmaxGrad" : "SoftmaxGrad", {{"axis", axis}}, {&dy, &y}, {&dx},
               [&] { expect_close(dx, expected, 2 * ulps_of(dtype), 1, "gradient"); });
      }
    }
  }
}

// Columns are worked on in copies, of which there are never more than columns.
TEST(Softmax, TakesNoMoreScratchThanItsOperands) {
  for (const Sizes& sizes : {Sizes{1000, 8}, Sizes{1000, 32}, Sizes{0, 8}, Sizes{8, 0}})
    for (const char* op : {"Softmax", "LogSoftmax", "SoftmaxGrad", "LogSoftmaxGrad"}) {
      Tensor x(DType::Float32, sizes), y(DType::Float32, sizes);
      std::vector<Tensor*> in{&x};
      if (std::string(op).ends_with("Grad")) in.push_back(&x);
      const StepFacts facts = facts_of({node_of(op, {{"axis", 0}}, in, {&y})}, in, {&y});
      const size_t operand_bytes = static_cast<size_t>(x.count()) * sizeof(float);
      for (const KernelDef* def : kernels_of(op)) {
        const size_t bytes = def->workspace_bytes ? def->workspace_bytes(facts) : 0;
        EXPECT_LE(bytes, in.size() * operand_bytes) << def->name;
      }
    }
}

TEST(Softmax, TreatsMasksAsEagerDoes) {
  const double inf = INFINITY;
  Tensor x = Tensor::of(DType::Float32, {3, 3}, {0, -inf, 0, -inf, -inf, -inf, 1, inf, 2});
  Tensor y(DType::Float32, {3, 3});
  run_op("Softmax", {{"axis", -1}}, {&x}, {&y}, [&] {
    const double nan = std::nan("");
    expect_close(y, {0.5, 0, 0.5, nan, nan, nan, nan, nan, nan}, 1, 0, "masked");
  });
}

// Neighbouring columns, each with a mask of its own, in vectors and in what is left of them.
TEST(Softmax, TreatsMasksOfColumnsAsEagerDoes) {
  const double inf = INFINITY, nan = std::nan("");
  const std::vector<double> columns[] = {
      {0, -inf, 0}, {-inf, -inf, -inf}, {1, inf, 2}, {nan, 0, 1}};
  const std::vector<double> results[] = {
      {0.5, 0, 0.5}, {nan, nan, nan}, {nan, nan, nan}, {nan, nan, nan}};
  for (DType dtype : kTypes) {
    const int64_t inner = 35;
    std::vector<double> values, expected;
    for (size_t j = 0; j < 3; ++j) {
      for (size_t c = 0; c < static_cast<size_t>(inner); ++c) {
        values.push_back(columns[c % 4][j]);
        expected.push_back(results[c % 4][j]);
      }
    }
    Tensor x = Tensor::of(dtype, {3, inner}, values), y(dtype, {3, inner});
    run_op("Softmax", {{"axis", 0}}, {&x}, {&y},
           [&] { expect_close(y, expected, ulps_of(dtype), 0, "masked columns"); });
  }
}

// Rows of whole vectors, which a lane, a warp or a block keeps, and the same at addresses that
// forbid vectors.
TEST(Softmax, TreatsMasksOfVectorsAsEagerDoes) {
  const double inf = INFINITY, nan = std::nan("");
  for (DType dtype : kTypes)
    for (int64_t n : {16, 1000, 2048})
      for (int64_t offset : {0, 1}) {
        Tensor x = Tensor::random(dtype, {5, n}, 1).misaligned(offset), y(dtype, {5, n});
        for (int64_t i = 0; i < n; ++i) x.set(n + i, -inf);
        for (int64_t row : {0, 2, 3})
          x.set(row * n + n - 2, row == 0 ? -inf : row == 2 ? inf : nan);
        for (bool log : {false, true})
          run_op(log ? "LogSoftmax" : "Softmax", {{"axis", -1}}, {&x}, {&y}, [&] {
            std::vector<double> expected = softmax(x.values(), {5, n}, 1, log);
            std::fill_n(expected.begin() + n, 3 * n, nan);
            expect_close(y, expected, ulps_of(dtype), 1e-2, "masked vectors");
          });
      }
}

TEST(Softmax, TakesABias) {
  const Sizes sizes{2, 3, 5, 37};
  for (DType dtype : kTypes) {
    for (const Sizes& bias_sizes :
         {Sizes{2, 1, 1, 37}, Sizes{37}, Sizes{5, 37}, Sizes{2, 3, 5, 37}, Sizes{5, 1}, Sizes{}}) {
      Tensor x = Tensor::random(dtype, sizes, 3), bias = Tensor::random(dtype, bias_sizes, 4);
      Tensor y(dtype, sizes), sum(dtype, sizes);
      for (int64_t i = 0; i < x.count(); ++i) {
        int64_t rest = i, offset = 0, stride = 1;
        for (size_t d = 4, k = bias_sizes.size(); k-- > 0;) {
          const int64_t c = rest % sizes[--d];
          rest /= sizes[d];
          offset += bias_sizes[k] == 1 ? 0 : c * stride;
          stride *= bias_sizes[k];
        }
        sum.set(i, x.get(i) + bias.get(offset));
      }
      run_op("BiasSoftmax", {{"axis", -1}}, {&x, &bias}, {&y}, [&] {
        expect_close(y, softmax(sum.values(), sizes, 3, false), ulps_of(dtype), 1e-2,
                     "BiasSoftmax");
      });
    }
  }
}

}  // namespace
}  // namespace ortmodule::testing
