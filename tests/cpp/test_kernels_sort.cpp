// Sort and TopK of our own against a stable sort.
#include <algorithm>
#include <limits>
#include <numeric>

#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

/// Whether a comes before b in ascending order; NaN is largest.
bool less(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

struct Sorted {
  std::vector<double> values, indices;
};

/// The first k along an axis of [outer, n, inner].
Sorted sorted(const Tensor& x, const Sizes& split, int64_t k, bool descending) {
  const auto [outer, n, inner] = std::tuple(split[0], split[1], split[2]);
  Sorted all;
  all.values.resize(static_cast<size_t>(outer * k * inner));
  all.indices.resize(all.values.size());
  for (int64_t line = 0; line < outer * inner; ++line) {
    const int64_t from = line / inner * n * inner + line % inner;
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      const double x_a = x.get(from + a * inner), x_b = x.get(from + b * inner);
      return descending ? less(x_b, x_a) : less(x_a, x_b);
    });
    for (int64_t i = 0; i < k; ++i) {
      const auto to = static_cast<size_t>(line / inner * k * inner + i * inner + line % inner);
      all.values[to] = x.get(from + order[static_cast<size_t>(i)] * inner);
      all.indices[to] = static_cast<double>(order[static_cast<size_t>(i)]);
    }
  }
  return all;
}

/// Few different elements, so that ties are many.
Tensor tied(DType dtype, const Sizes& sizes, unsigned seed) {
  const bool is_float = kAllFloats.contains(dtype);
  const double least = dtype == DType::UInt8 || dtype == DType::Bool ? 0 : -6;
  Tensor whole = Tensor::random(DType::Int64, sizes, seed, least, dtype == DType::Bool ? 1.9 : 6);
  Tensor x(dtype, sizes);
  for (int64_t i = 0; i < x.count(); ++i) x.set(i, whole.get(i));
  for (int64_t i = 0; is_float && i < x.count(); i += 7) {
    const double special[] = {std::nan(""), -0.0, std::numeric_limits<double>::infinity(),
                              -std::numeric_limits<double>::infinity(), 0.0};
    x.set(i, special[i / 7 % 5]);
  }
  return x;
}

TEST(TopK, TakesTheLowerIndexOfEqualElements) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16, DType::Int64,
                      DType::Int32, DType::Int8, DType::UInt8, DType::Bool})
    for (const auto& [sizes, axis, k] : {std::tuple{Sizes{40, 3}, int64_t{0}, int64_t{5}},
                                         std::tuple{Sizes{2, 70}, int64_t{-1}, int64_t{70}},
                                         std::tuple{Sizes{3, 9, 4}, int64_t{1}, int64_t{1}},
                                         std::tuple{Sizes{5}, int64_t{0}, int64_t{0}},
                                         std::tuple{Sizes{0, 4}, int64_t{1}, int64_t{2}}})
      for (int64_t largest : {0, 1}) {
        SCOPED_TRACE(str(name_of(dtype), " ", ::testing::PrintToString(sizes), " ", k));
        const size_t at = static_cast<size_t>(axis < 0 ? axis + std::ssize(sizes) : axis);
        Sizes out = sizes, split{1, sizes[at], 1};
        out[at] = k;
        for (size_t d = 0; d < sizes.size(); ++d)
          if (d != at) split[d < at ? 0 : 2] *= sizes[d];
        Tensor x = tied(dtype, sizes, 3), values(dtype, out), indices(DType::Int64, out);
        const Sorted expected = sorted(x, split, k, largest);
        for (const char* name : {"top_k_cpu", "stable_top_k_cpu"})
          run_kernel_named(name, "TopK",
                           {{"axis", axis}, {"k", k}, {"largest", largest}, {"stable", 1}}, {&x},
                           {&values, &indices}, [&] {
                             expect_close(values, expected.values, 0, 0, "values");
                             expect_close(indices, expected.indices, 0, 0, "indices");
                           });
      }
}

TEST(TopK, LeavesTiesToTorchWhereItMay) {
  Tensor x = tied(DType::Float32, {9}, 1), values(DType::Float32, {3}), indices(DType::Int64, {3});
  const StepFacts facts =
      facts_of({node_of("TopK", {{"axis", 0}, {"k", 3}}, {&x}, {&values, &indices})}, {&x},
               {&values, &indices});
  std::string why;
  const KernelDef* chosen = select_kernel("TopK", Device::CPU, facts, &why);
  ASSERT_NE(chosen, nullptr) << why;
  EXPECT_LT(chosen->priority, 0);
}

TEST(Sort, IsStable) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Int64, DType::UInt8})
    for (int64_t descending : {0, 1}) {
      Tensor x = tied(dtype, {3, 200, 2}, 5), values(dtype, {3, 200, 2});
      Tensor indices(DType::Int64, {3, 200, 2});
      const Sorted expected = sorted(x, {3, 200, 2}, 200, descending);
      run_kernel_named("sort_cpu", "Sort", {{"axis", 1}, {"descending", descending}}, {&x},
                       {&values, &indices}, [&] {
                         expect_close(values, expected.values, 0, 0, "values");
                         expect_close(indices, expected.indices, 0, 0, "indices");
                       });
    }
}

}  // namespace
}  // namespace ortmodule::testing
