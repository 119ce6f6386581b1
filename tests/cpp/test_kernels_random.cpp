// Random numbers in pointwise groups: what an element gets depends on its position alone.
#include <cmath>

#include "kernels/philox.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

// --- dropout -------------------------------------------------------------------------------------
std::vector<double> dropout_reference(const Tensor& x, double ratio, uint64_t rng) {
  std::vector<double> expected;
  for (int64_t i = 0; i < x.count(); ++i) {
    const uint64_t word = philox_word(kSeed, rng, static_cast<uint64_t>(i));
    const bool keep = word >= static_cast<uint64_t>(ratio * 4294967296.0);
    const float scale = static_cast<float>(1 / (1 - ratio));
    expected.push_back(keep ? static_cast<float>(x.get(i)) * scale : 0.0);
  }
  return expected;
}

TEST(Dropout, DrawsByLogicalIndex) {
  for (const Sizes& sizes : {Sizes{1}, Sizes{3}, Sizes{4097}, Sizes{7, 1031}, Sizes{3, 5, 7}}) {
    Tensor x = Tensor::random(DType::Float32, sizes, 19);
    for (double ratio : {0.0, 0.1, 0.5}) {
      const std::vector<double> expected = dropout_reference(x, ratio, 5);
      for (const char* op : {"Dropout", "DropoutGrad"}) {
        Tensor y(DType::Float32, sizes);
        run_group({node_of(op, {{"ratio", ratio}, {"rng", 5}}, {&x}, {&y})}, {&x}, {&y},
                  [&] { expect_close(y, expected, 0, 0, "dropout"); });
      }
    }
  }
  Tensor x = Tensor::random(DType::Float32, {100}, 20), y(DType::Float32, {100});
  run_group({node_of("Dropout", {{"ratio", 1.0}, {"rng", 0}}, {&x}, {&y})}, {&x}, {&y},
            [&] { expect_close(y, std::vector<double>(100, 0.0), 0, 0, "all dropped"); });
}

TEST(Dropout, DoesNotDependOnLayout) {
  Tensor x = Tensor::random(DType::Float32, {13, 1500}, 21, -2, 2, {1, 13});
  const std::vector<double> expected = dropout_reference(x, 0.25, 1ull << 40);
  for (const Sizes& strides : {Sizes{1500, 1}, Sizes{1, 13}}) {
    Tensor y(DType::Float32, {13, 1500}, strides);
    const Attrs attrs{{"ratio", 0.25}, {"rng", DimExpr(int64_t{1} << 40)}};
    run_group({node_of("Dropout", attrs, {&x}, {&y})}, {&x}, {&y},
              [&] { expect_close(y, expected, 0, 0, "permuted dropout"); });
  }
}

TEST(Dropout, KeepsTheRightShare) {
  Tensor x = Tensor::of(DType::Float32, {1 << 20}, std::vector<double>(1 << 20, 1.0));
  Tensor y(DType::Float32, {1 << 20});
  run_group({node_of("Dropout", {{"ratio", 0.1}, {"rng", 3}}, {&x}, {&y})}, {&x}, {&y}, [&] {
    double kept = 0;
    for (double v : y.values()) kept += v != 0;
    EXPECT_NEAR(kept / (1 << 20), 0.9, 0.002);
  });
}

// --- uniform numbers -----------------------------------------------------------------------------
// The element's words, cut to the bits that the type has below 1.
double uniform_reference(DType dtype, uint64_t stream, uint64_t i) {
  if (dtype == DType::Float64) {
    const uint64_t high = philox_word(kSeed, stream, 2 * i);
    const uint64_t low = philox_word(kSeed, stream, 2 * i + 1);
    return std::ldexp(static_cast<double>((high << 21) | (low >> 11)), -53);
  }
  const int bits = dtype == DType::Float32 ? 24 : dtype == DType::Float16 ? 11 : 8;
  return std::ldexp(static_cast<double>(philox_word(kSeed, stream, i) >> (32 - bits)), -bits);
}

TEST(RandomUniform, DrawsByLogicalIndexInAnyLayout) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
    for (const auto& [sizes, strides] : std::vector<std::pair<Sizes, Sizes>>{
             {{1}, {1}}, {{4099}, {1}}, {{3, 5, 7}, {35, 7, 1}}, {{13, 1500}, {1, 13}}})
      for (uint64_t part : {0, 1}) {
        std::vector<double> expected;
        for (int64_t i = 0; i < element_count(sizes); ++i)
          expected.push_back(uniform_reference(dtype, 5 + (part << 56), static_cast<uint64_t>(i)));
        Tensor y(dtype, sizes, strides);
        const Attrs attrs{{"rng", 5}, {"part", DimExpr(static_cast<int64_t>(part))}};
        run_group({node_of("RandomUniform", attrs, {}, {&y})}, {}, {&y},
                  [&] { expect_close(y, expected, 0, 0, "uniform"); });
      }
}

}  // namespace
}  // namespace ortmodule::testing
