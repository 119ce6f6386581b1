// GroupedMatMul and GroupedOuterProduct against sums in double: every copy of the kernels.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr int64_t kInner = 37, kColumns = 21;

// Rows 0 to 3, none, and 40 more; the rest has no group.
Tensor some_ends(DType dtype) {
  Tensor ends(dtype, {3});
  ends.set(0, 3);
  ends.set(1, 3);
  ends.set(2, 43);
  return ends;
}

int64_t group_of(int64_t row) { return row < 3 ? 0 : row < 43 ? 2 : -1; }

TEST(GroupedMatMul, RowsMeetTheWeightsOfTheirGroup) {
  for (const DType dtype : {DType::Float32, DType::Float64})
    for (const DType index : {DType::Int32, DType::Int64}) {
      Tensor x = Tensor::random(dtype, {50, kInner}, 1), ends = some_ends(index);
      Tensor w = Tensor::random(dtype, {3, kInner, kColumns}, 2);
      Tensor y(dtype, {50, kColumns});
      run_kernel_named("grouped_matmul_cpu", "GroupedMatMul", {}, {&x, &w, &ends}, {&y}, [&] {
        for (int64_t row = 0; row < 50; ++row)
          for (int64_t column = 0; column < kColumns; ++column) {
            double sum = 0;
            for (int64_t k = 0; group_of(row) >= 0 && k < kInner; ++k)
              sum +=
                  x.get(row * kInner + k) * w.get((group_of(row) * kInner + k) * kColumns + column);
            ASSERT_NEAR(y.get(row * kColumns + column), sum, 1e-4) << row << ", " << column;
          }
      });
    }
}

TEST(GroupedMatMul, OuterProductsAreSummedInEachGroup) {
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    Tensor a = Tensor::random(dtype, {50, kInner}, 1), ends = some_ends(DType::Int32);
    Tensor b = Tensor::random(dtype, {50, kColumns}, 2);
    Tensor y(dtype, {3, kInner, kColumns});
    run_kernel_named("grouped_outer_product_cpu", "GroupedOuterProduct", {}, {&a, &b, &ends}, {&y},
                     [&] {
                       for (int64_t at = 0; at < y.count(); ++at) {
                         const int64_t group = at / (kInner * kColumns), k = at / kColumns % kInner;
                         double sum = 0;
                         for (int64_t row = 0; row < 50; ++row)
                           if (group_of(row) == group)
                             sum += a.get(row * kInner + k) * b.get(row * kColumns + at % kColumns);
                         ASSERT_NEAR(y.get(at), sum, 1e-4) << at;
                       }
                     });
  }
}

TEST(GroupedMatMul, EndsThatDescendAreAnError) {
  Tensor x = Tensor::random(DType::Float32, {50, kInner}, 1), ends = some_ends(DType::Int64);
  Tensor w = Tensor::random(DType::Float32, {3, kInner, kColumns}, 2);
  Tensor y(DType::Float32, {50, kColumns});
  ends.set(1, 2);
  const auto run = [&] {
    run_kernel_named("grouped_matmul_cpu", "GroupedMatMul", {}, {&x, &w, &ends}, {&y}, [] {});
  };
  EXPECT_THROW(run(), Error);
}

}  // namespace
}  // namespace ortmodule::testing
