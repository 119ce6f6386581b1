#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

using Fold = std::function<double(double, double)>;

// Folds over `axes`; the result in row-major order of the kept dimensions.
std::vector<double> fold(const Tensor& x, const std::vector<int64_t>& axes, double start,
                         const Fold& f, double* count) {
  const Sizes& sizes = x.sizes();
  std::vector<bool> reduced(sizes.size(), axes.empty());
  for (int64_t axis : axes) reduced[static_cast<size_t>(axis)] = true;
  int64_t outputs = 1;
  *count = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (reduced[d])
      *count *= static_cast<double>(sizes[d]);
    else
      outputs *= sizes[d];
  }
  std::vector<double> result(static_cast<size_t>(outputs), start);
  for (int64_t i = 0; i < x.count(); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      if (!reduced[d]) {
        at += rest % sizes[d] * stride;
        stride *= sizes[d];
      }
      rest /= sizes[d];
    }
    double& place = result[static_cast<size_t>(at)];
    place = f(place, x.get(i));
  }
  return result;
}

Dims dims_of(const std::vector<int64_t>& axes) { return Dims(axes.begin(), axes.end()); }

struct Shape {
  Sizes sizes;
  std::vector<int64_t> axes;
};
const std::vector<Shape> kShapes = {{{}, {}},
                                    {{1}, {0}},
                                    {{1000}, {}},
                                    {{7, 13}, {1}},
                                    {{7, 13}, {0}},
                                    {{7, 13}, {}},
                                    {{500, 1037}, {0}},
                                    {{2000, 3}, {0}},
                                    {{3, 9000}, {1}},
                                    {{70001}, {0}},
                                    {{2, 3, 4, 5, 6}, {1, 3}},
                                    {{2, 3, 4, 5, 6}, {0, 2, 4}},
                                    {{5, 33, 20}, {1}},
                                    {{64, 8, 9, 10}, {0, 2, 3}},
                                    {{4, 0, 3}, {2}},
                                    {{263, 3}, {1}},
                                    {{5, 7, 32}, {2}},
                                    {{41, 33}, {1}},
                                    {{4000, 5, 7}, {0}},
                                    {{90, 1000}, {0}},
                                    {{37, 2}, {1}},
                                    {{35, 16}, {1}},
                                    {{19, 63}, {1}},
                                    {{300, 64}, {1}},
                                    {{21, 65}, {1}},
                                    {{9, 1024}, {1}},
                                    {{6, 700, 40}, {1}},
                                    {{30, 2, 20, 16}, {0, 2}}};

Tensor result_of(DType dtype, const std::vector<double>& expected) {
  return Tensor(dtype, {static_cast<int64_t>(expected.size())});
}

TEST(Reduce, MatchesDouble) {
  for (const Shape& shape : kShapes) {
    for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16}) {
      Tensor x = Tensor::random(dtype, shape.sizes, 1, -1, 2);
      const Attrs attrs{{"axes", dims_of(shape.axes)}, {"keepdims", 0}};
      double count = 0;
      std::vector<double> sums = fold(x, shape.axes, 0, std::plus<double>(), &count);
      const double noise = std::sqrt(count);  // of a sum that cancels
      // In double the reference errs as well.
      const double ulps = dtype == DType::Float64 ? 2 + count : 4;
      Tensor y = result_of(dtype, sums);
      run_op("ReduceSum", attrs, {&x}, {&y}, [&] { expect_close(y, sums, ulps, noise, "sum"); });
      std::vector<double> means = sums;
      for (double& mean : means) mean /= count;
      run_op("ReduceMean", attrs, {&x}, {&y},
             [&] { expect_close(y, means, ulps, 1 / noise, "mean"); });
      if (x.count() == 0) continue;
      auto max = [](double a, double b) { return std::max(a, b); };
      auto min = [](double a, double b) { return std::min(a, b); };
      const std::vector<double> most = fold(x, shape.axes, -INFINITY, max, &count);
      const std::vector<double> least = fold(x, shape.axes, INFINITY, min, &count);
      run_op("ReduceMax", attrs, {&x}, {&y}, [&] { expect_close(y, most, 0, 0, "max"); });
      run_op("ReduceMin", attrs, {&x}, {&y}, [&] { expect_close(y, least, 0, 0, "min"); });
      if (count > 100) continue;
      const std::vector<double> products =
          fold(x, shape.axes, 1, std::multiplies<double>(), &count);
      run_op("ReduceProd", attrs, {&x}, {&y},
             [&] { expect_close(y, products, ulps, 1e-2, "prod"); });
    }
  }
}

// --- channels-last -------------------------------------------------------------------------------
const Shape kImages[] = {{{3, 5, 7, 9}, {2, 3}},       {{2, 67, 14, 14}, {2, 3}},
                         {{1, 33, 60, 61}, {2, 3}},    {{2, 2100, 3, 5}, {2, 3}},
                         {{2, 3, 40, 50}, {}},         {{2, 19, 6, 7}, {1}},
                         {{3, 40, 5, 4}, {0}},         {{4, 6, 1, 8}, {0, 2, 3}},
                         {{2, 7, 3, 5, 4}, {2, 3, 4}}, {{2, 9, 3, 5}, {1, 2}}};

/// Whether kept elements lie in memory as they do in a row-major result.
bool keeps_order(const Shape& shape) {
  const auto kept = [&](int64_t axis) {
    return shape.sizes[static_cast<size_t>(axis)] > 1 && !shape.axes.empty() &&
           std::ranges::find(shape.axes, axis) == shape.axes.end();
  };
  bool pixels = false;
  for (int64_t axis = 2; axis < static_cast<int64_t>(shape.sizes.size()); ++axis)
    pixels = pixels || kept(axis);
  return !(pixels && kept(1));
}

TEST(Reduce, ReadsChannelsLastImagesInPlace) {
  for (const Shape& shape : kImages) {
    if (!keeps_order(shape)) continue;
    SCOPED_TRACE(
        str(::testing::PrintToString(shape.sizes), " over ", ::testing::PrintToString(shape.axes)));
    for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Int32}) {
      Tensor x = Tensor::random(dtype, shape.sizes, 1, -1, 2, channels_last_strides(shape.sizes));
      const Attrs attrs{{"axes", dims_of(shape.axes)}, {"keepdims", 0}};
      double count = 0;
      std::vector<double> sums = fold(x, shape.axes, 0, std::plus<double>(), &count);
      Tensor y = result_of(dtype, sums);
      const double ulps = dtype == DType::Float64 ? 2 + count : 6;
      const auto sum_is_close = [&] { expect_close(y, sums, ulps, std::sqrt(count), "sum"); };
      run_op("ReduceSum", attrs, {&x}, {&y}, sum_is_close);
      run_kernel_named("reduce_sum_row_major_cpu", "ReduceSum", attrs, {&x}, {&y}, sum_is_close);
      auto max = [](double a, double b) { return std::max(a, b); };
      const std::vector<double> most = fold(x, shape.axes, -INFINITY, max, &count);
      run_op("ReduceMax", attrs, {&x}, {&y}, [&] { expect_close(y, most, 0, 0, "max"); });
      if (!is_floating(dtype)) continue;
      for (double& sum : sums) sum /= count;
      run_op("ReduceMean", attrs, {&x}, {&y},
             [&] { expect_close(y, sums, ulps, 1 / std::sqrt(count), "mean"); });
    }
  }
}

TEST(Reduce, CopiesImagesWhoseChannelsAndPixelsStay) {
  for (Device device : {Device::CPU, Device::CUDA})
    for (const Shape& shape : kImages)
      for (bool channels_last : {true, false}) {
        Tensor x(DType::Float32, shape.sizes,
                 channels_last ? channels_last_strides(shape.sizes) : Sizes());
        double count = 0;
        Tensor y = result_of(DType::Float32, fold(x, shape.axes, 0, std::plus<double>(), &count));
        const Attrs attrs{{"axes", dims_of(shape.axes)}, {"keepdims", 0}};
        const StepFacts facts = facts_of({node_of("ReduceSum", attrs, {&x}, {&y})}, {&x}, {&y});
        const KernelDef* def = select_kernel("ReduceSum", device, facts, nullptr);
        ASSERT_NE(def, nullptr);
        const bool in_place = keeps_order(shape) || !channels_last;
        EXPECT_EQ(def->layout, in_place ? LayoutRule::MemoryFormat : LayoutRule::Contiguous)
            << ::testing::PrintToString(shape.sizes) << ::testing::PrintToString(shape.axes);
      }
}

TEST(Reduce, PropagatesNaNOfChannels) {
  const Sizes sizes{2, 13, 9, 11};
  Tensor x = Tensor::random(DType::Float32, sizes, 4, -2, 2, channels_last_strides(sizes));
  for (int64_t plane : {0, 5, 17, 25}) x.set(plane * 99 + plane * 3, std::nan(""));
  Tensor y(DType::Float32, {2, 13, 1, 1});
  for (const char* op : {"ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"})
    run_op(op, {{"axes", Dims{-1, -2}}, {"keepdims", 1}}, {&x}, {&y}, [&] {
      for (int64_t plane = 0; plane < 26; ++plane)
        EXPECT_EQ(std::isnan(y.get(plane)), plane == 0 || plane == 5 || plane == 17 || plane == 25)
            << op << plane;
    });
}

// -------------------------------------------------------------------------------------------------
TEST(Reduce, AddsIntegersAndBools) {
  for (DType dtype :
       {DType::Int64, DType::Int32, DType::Int16, DType::Int8, DType::UInt8, DType::Bool}) {
    for (const Shape& shape : kShapes) {
      Tensor x = Tensor::random(dtype, shape.sizes, 2, 0, 100);
      for (int64_t i = 0; i < x.count(); i += 3) x.set(i, 0);
      double count = 0;
      const std::vector<double> sums = fold(x, shape.axes, 0, std::plus<double>(), &count);
      Tensor y = result_of(DType::Int64, sums);
      run_op("ReduceSum", {{"axes", dims_of(shape.axes)}}, {&x}, {&y},
             [&] { expect_close(y, sums, 0, 0, "integer sum"); });
    }
  }
}

TEST(Reduce, ErrsLessThanAFloatSum) {
  const int64_t count = 1 << 20;
  Tensor x = Tensor::random(DType::Float32, {count}, 3, 0, 1), y(DType::Float32, {1});
  double expected = 0;
  for (double v : x.values()) expected += v;
  run_op("ReduceSum", {{"axes", Dims{0}}}, {&x}, {&y},
         [&] { expect_close(y, {expected}, 1.01, 0, "long sum"); });
}

TEST(Reduce, PropagatesNaN) {
  const double nan = std::nan("");
  for (int64_t position : {0, 1, 5, 40, 99}) {
    Tensor x = Tensor::random(DType::Float32, {100}, 4), y(DType::Float32, {});
    x.set(position, nan);
    for (const char* op : {"ReduceMax", "ReduceMin", "ReduceSum"})
      run_op(op, {{"axes", Dims()}}, {&x}, {&y}, [&] { EXPECT_TRUE(std::isnan(y.get(0))); });
    Tensor matrix = Tensor::of(DType::Float32, {100, 1, 1}, x.values());
    Tensor index(DType::Int64, {1, 1});
    run_op("ArgMax", {{"axis", 0}}, {&matrix}, {&index},
           [&] { EXPECT_EQ(index.get(0), static_cast<double>(position)); });
  }
}

TEST(Reduce, PropagatesNaNOfShortRows) {
  Tensor x = Tensor::random(DType::Float32, {21, 3}, 4), y(DType::Float32, {21});
  for (int64_t i = 0; i < 63; i += 7) x.set(i, std::nan(""));
  for (const char* op : {"ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"})
    run_op(op, {{"axes", Dims{1}}}, {&x}, {&y}, [&] {
      for (int64_t row = 0; row < 21; ++row) {
        const double sum = x.get(3 * row) + x.get(3 * row + 1) + x.get(3 * row + 2);
        EXPECT_EQ(std::isnan(y.get(row)), std::isnan(sum)) << op << row;
      }
    });
}

TEST(ArgReduce, FindsTheFirst) {
  for (DType dtype : {DType::Float32, DType::BFloat16, DType::Int64, DType::Int8}) {
    Tensor x = Tensor::random(dtype, {5, 37, 3}, 5, -9, 9);
    Tensor most(DType::Int64, {5, 3}), least(DType::Int64, {5, 3});
    std::vector<double> expected_most, expected_least;
    for (int64_t o = 0; o < 5; ++o) {
      for (int64_t i = 0; i < 3; ++i) {
        int64_t high = 0, low = 0;
        for (int64_t j = 0; j < 37; ++j) {
          if (x.get((o * 37 + j) * 3 + i) > x.get((o * 37 + high) * 3 + i)) high = j;
          if (x.get((o * 37 + j) * 3 + i) < x.get((o * 37 + low) * 3 + i)) low = j;
        }
        expected_most.push_back(static_cast<double>(high));
        expected_least.push_back(static_cast<double>(low));
      }
    }
    run_op("ArgMax", {{"axis", 1}}, {&x}, {&most},
           [&] { expect_close(most, expected_most, 0, 0, "ArgMax"); });
    run_op("ArgMin", {{"axis", -2}}, {&x}, {&least},
           [&] { expect_close(least, expected_least, 0, 0, "ArgMin"); });
  }
}

TEST(ArgReduce, FindsTheFirstOfLongRows) {
  for (int64_t count : {1, 20, 300, 9000}) {
    Tensor x = Tensor::random(DType::Float16, {7, count}, 6, -9, 9), most(DType::Int64, {7});
    std::vector<double> expected;
    for (int64_t row = 0; row < 7; ++row) {
      int64_t best = 0;
      for (int64_t j = 0; j < count; ++j)
        if (x.get(row * count + j) > x.get(row * count + best)) best = j;
      expected.push_back(static_cast<double>(best));
    }
    run_op("ArgMax", {{"axis", 1}}, {&x}, {&most},
           [&] { expect_close(most, expected, 0, 0, "ArgMax"); });
  }
}

}  // namespace
}  // namespace ortmodule::testing
