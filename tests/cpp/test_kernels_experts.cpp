// ExpertMatMul against sums in double: every copy of the kernels, with weights of floats and of few
// bits.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr int64_t kExperts = 3, kInner = 64, kColumns = 21, kEach = 2, kBlock = 32;

Tensor some_experts(int64_t tokens) {
  Tensor ids(DType::Int64, {tokens, kEach});
  for (int64_t i = 0; i < ids.count(); ++i) ids.set(i, static_cast<double>(i * 5 / 3 % kExperts));
  return ids;
}

// weight(expert, column, k)
template <class Weight>
void expect_products(const Tensor& x, const Tensor& ids, const Tensor& y, const Weight& weight) {
  const bool shared = x.sizes().size() == 2;
  for (int64_t pair = 0; pair < ids.count(); ++pair)
    for (int64_t column = 0; column < kColumns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < kInner; ++k)
        sum += x.get((shared ? pair / kEach : pair) * kInner + k) *
               weight(static_cast<int64_t>(ids.get(pair)), column, k);
      ASSERT_NEAR(y.get(pair * kColumns + column), sum, 1e-4) << pair << ", " << column;
    }
}

TEST(Experts, RowsMeetTheWeightsOfTheirExperts) {
  for (const int64_t tokens : {0, 1, 7, 300})
    for (const bool shared : {true, false}) {
      SCOPED_TRACE(str(tokens, " tokens, shared ", shared));
      Tensor x = Tensor::random(DType::Float32,
                                shared ? Sizes{tokens, kInner} : Sizes{tokens, kEach, kInner}, 1);
      Tensor ids = some_experts(tokens);
      Tensor w = Tensor::random(DType::Float32, {kExperts, kColumns, kInner}, 2);
      Tensor y(DType::Float32, {tokens, kEach, kColumns});
      const Attrs attrs{{"K", kInner},
                        {"N", kColumns},
                        {"bits", int64_t{32}},
                        {"block_size", kBlock},
                        {"rounds_x", int64_t{0}}};
      run_kernel_named("expert_matmul_cpu", "ExpertMatMul", attrs, {&x, &ids, &w, nullptr, nullptr},
                       {&y}, [&] {
                         expect_products(x, ids, y, [&](int64_t expert, int64_t column, int64_t k) {
                           return w.get((expert * kColumns + column) * kInner + k);
                         });
                       });
    }
}

TEST(Experts, WeightsOfFewBitsAreThoseOfTheirBlocks) {
  for (const int64_t bits : {2, 4, 8})
    for (const int64_t tokens : {1, 40}) {
      SCOPED_TRACE(str(bits, " bits, ", tokens, " tokens"));
      Tensor x = Tensor::random(DType::Float32, {tokens, kInner}, 1);
      Tensor ids = some_experts(tokens);
      Tensor w(DType::UInt8, {kExperts, kColumns, kInner * bits / 8});
      for (int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i * 37 % 256));
      Tensor scales = Tensor::random(DType::Float32, {kExperts, kColumns, kInner / kBlock}, 3);
      for (int64_t i = 0; i < scales.count(); ++i) scales.set(i, scales.get(i) / (1 << bits));
      Tensor y(DType::Float32, {tokens, kEach, kColumns});
      const Attrs attrs{{"K", kInner},
                        {"N", kColumns},
                        {"bits", bits},
                        {"block_size", kBlock},
                        {"rounds_x", int64_t{0}}};
      run_kernel_named(
          "expert_matmul_cpu", "ExpertMatMul", attrs, {&x, &ids, &w, &scales, nullptr}, {&y}, [&] {
            expect_products(x, ids, y, [&](int64_t expert, int64_t column, int64_t k) {
              const int64_t row = expert * kColumns + column;
              const auto byte =
                  static_cast<int64_t>(w.get(row * (kInner * bits / 8) + k * bits / 8));
              const int64_t number = (byte >> (k * bits % 8)) & ((1 << bits) - 1);
              return static_cast<double>(number - (1 << (bits - 1))) *
                     scales.get(row * (kInner / kBlock) + k / kBlock);
            });
          });
    }
}

}  // namespace
}  // namespace ortmodule::testing
