// MatMul, FusedMatMul and Gemm by our own products against sums in double.
#include <array>
#include <limits>

#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

/// y [..., m, n] = alpha a b + beta c, element by element.
std::vector<double> product_of(const Tensor& a, const Tensor& b, const Tensor& y,
                               const Attrs& attrs, const Tensor* c) {
  const bool trans_a = attrs.flag("transA"), trans_b = attrs.flag("transB");
  const size_t rank = y.sizes().size();
  const int64_t m = y.sizes()[rank - 2], n = y.sizes()[rank - 1];
  const int64_t inner = a.sizes()[a.sizes().size() - (trans_a ? 2 : 1)];
  const int64_t batch = y.count() / std::max<int64_t>(m * n, 1);
  const auto matrix = [&](const Tensor& t, int64_t i) {  // a batch is missing or whole
    const int64_t count = t.count() / batch;
    return t.sizes().size() == 2 ? 0 : i * count;
  };
  const std::vector<double> left = a.values(), right = b.values();
  std::vector<double> values;
  for (int64_t i = 0; i < batch; ++i)
    for (int64_t row = 0; row < m; ++row)
      for (int64_t column = 0; column < n; ++column) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k)
          sum +=
              left[static_cast<size_t>(matrix(a, i) + (trans_a ? k * m + row : row * inner + k))] *
              right[static_cast<size_t>(matrix(b, i) +
                                        (trans_b ? column * inner + k : k * n + column))];
        sum *= attrs.number("alpha", 1.0);
        if (c) {
          const int64_t c_row = c->sizes()[0] == 1 ? 0 : row;
          const int64_t c_column = c->sizes()[1] == 1 ? 0 : column;
          sum += attrs.number("beta", 1.0) * c->get(c_row * c->sizes()[1] + c_column);
        }
        values.push_back(sum);
      }
  return values;
}

/// Runs every copy of our kernels, whether it would be chosen here or not, on one thread and on
/// two.
void check_product(const std::string& op, const Attrs& attrs, Tensor& a, Tensor& b, Tensor* c,
                   const Sizes& sizes) {
  Tensor y(a.dtype(), sizes);
  std::vector<Tensor*> in{&a, &b};
  if (c) in.push_back(c);
  const StepFacts facts = facts_of({node_of(op, attrs, in, {&y})}, in, {&y});
  const std::vector<double> expected = product_of(a, b, y, attrs, c);
  // Partial sums are of the size of the root of the inner dimension, and each addition rounds one.
  const int64_t inner = b.sizes()[b.sizes().size() - (attrs.flag("transB") ? 1 : 2)];
  const double ulps = 8.0 + 2.0 * static_cast<double>(inner);
  const std::vector<const KernelDef*> kernels = kernels_of(op);
  ASSERT_FALSE(kernels.empty());
  for (const KernelDef* def : kernels) {
    // The fast one is for products that multiply something, cuBLASLt's for what it does not refuse.
    if (!def->dtypes.contains(a.dtype()) || (inner == 0 && def->unsupported)) continue;
    if (def->device == Device::CUDA && def->unsupported(facts)) continue;
    // That of pairs is for processors that have an instruction, and adds rows only.
    if (def->name.ends_with("_pairs_cpu") && def->unsupported(facts)) continue;
    SCOPED_TRACE(str(def->name, " ", name_of(a.dtype()), " ", ::testing::PrintToString(a.sizes()),
                     " ", ::testing::PrintToString(b.sizes())));
    std::fill_n(static_cast<char*>(y.data()), y.view().byte_count(), char{0x7f});
    run_kernel(*def, facts, in, {&y});
    expect_close(y, expected, ulps, 1, "y");
    const Tensor first = y;
    run_kernel(*def, facts, in, {&y}, two_threads);
    EXPECT_TRUE(first.same_bits(y)) << "two threads differ";
  }
}

struct ProductSizes {
  int64_t m, n, k;
};

// Fewer rows than a tile and a few more; columns of less than a vector, of one and two panels and a
// rest, of more than a block; inner dimensions of more than a piece.
constexpr ProductSizes kSizes[] = {{1, 1, 1},    {4, 10, 64},  {5, 33, 7},    {6, 16, 3},
                                   {7, 31, 17},  {13, 48, 65}, {14, 64, 16},  {15, 65, 31},
                                   {29, 7, 300}, {43, 96, 40}, {64, 530, 20}, {16, 1100, 513}};

// Few rows and columns, and nothing to add; rows in groups and a rest, over more than one piece of
// the inner dimension.
constexpr ProductSizes kThinSizes[] = {
    {1, 300, 1100}, {2, 1, 5},     {3, 37, 70}, {3, 270, 530},   {4, 70, 130},
    {11, 5, 700},   {300, 1, 530}, {17, 2, 9},  {20, 270, 1100}, {32, 70, 1030},
    {5, 7, 0},      {3, 1, 0},     {0, 4, 3},   {4, 0, 3}};

TEST(MatMul, MatchesDoubleInEveryOrientation) {
  for (const auto& [m, n, k] : kSizes)
    for (DType dtype : {DType::Float32, DType::Float64})
      for (int flips = 0; flips < 4; ++flips) {
        const bool trans_a = flips & 1, trans_b = flips & 2;
        Tensor a = Tensor::random(dtype, trans_a ? Sizes{k, m} : Sizes{m, k}, 1);
        Tensor b = Tensor::random(dtype, trans_b ? Sizes{n, k} : Sizes{k, n}, 2);
        const Attrs attrs{
            {"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}, {"alpha", 0.5}};
        check_product("FusedMatMul", attrs, a, b, nullptr, {m, n});
        if (flips == 0) check_product("MatMul", {}, a, b, nullptr, {m, n});
      }
}

TEST(MatMul, TakesEveryTypeAndThinMatrices) {
  for (const auto& [m, n, k] : kThinSizes)
    for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
      for (int flips = 0; flips < 4; ++flips) {
        const bool trans_a = flips & 1, trans_b = flips & 2;
        Tensor a = Tensor::random(dtype, trans_a ? Sizes{k, m} : Sizes{m, k}, 1);
        Tensor b = Tensor::random(dtype, trans_b ? Sizes{n, k} : Sizes{k, n}, 2);
        Tensor c = Tensor::random(dtype, {m, 1}, 3);
        const Attrs attrs{
            {"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}, {"alpha", 0.5}};
        check_product("FusedMatMul", attrs, a, b, nullptr, {m, n});
        check_product("Gemm", attrs, a, b, &c, {m, n});
      }
  for (const auto& [m, n, k] : kSizes)
    for (DType dtype : {DType::Float16, DType::BFloat16}) {
      Tensor a = Tensor::random(dtype, {m, k}, 1), b = Tensor::random(dtype, {n, k}, 2);
      Tensor c = Tensor::random(dtype, {1, n}, 3);
      check_product("Gemm", {{"transB", int64_t{1}}, {"beta", -2.0}}, a, b, &c, {m, n});
      Tensor flipped = Tensor::random(dtype, {k, m}, 4);
      check_product("FusedMatMul", {{"transA", int64_t{1}}, {"transB", int64_t{1}}}, flipped, b,
                    nullptr, {m, n});
    }
}

TEST(MatMul, WrapsIntegersAround) {
  for (const auto& [m, n, k] : {ProductSizes{1, 1, 1}, ProductSizes{3, 270, 40},
                                ProductSizes{9, 5, 513}, ProductSizes{4, 3, 0}})
    for (const auto& [dtype, bits] :
         {std::pair{DType::Int8, 8}, std::pair{DType::UInt8, 8}, std::pair{DType::Int16, 16},
          std::pair{DType::Int32, 32}, std::pair{DType::Int64, 64}})
      for (int flips = 0; flips < 2; ++flips) {
        const double least = dtype == DType::UInt8 ? 0 : -100;
        Tensor a = Tensor::random(dtype, {2, m, k}, 1, least, 100);
        Tensor b = Tensor::random(dtype, flips ? Sizes{n, k} : Sizes{k, n}, 2, least, 100);
        Tensor y(dtype, {2, m, n});
        const Attrs attrs{{"transB", int64_t{flips}}, {"alpha", 3.0}};
        std::vector<double> expected = product_of(a, b, y, attrs, nullptr);
        const double period = std::ldexp(1, bits), low = dtype == DType::UInt8 ? 0 : period / -2;
        for (double& value : expected) value -= std::floor((value - low) / period) * period;
        for (const KernelDef* def : kernels_of("FusedMatMul")) {
          if (!def->dtypes.contains(dtype)) continue;
          SCOPED_TRACE(str(def->name, " ", name_of(dtype)));
          const StepFacts facts =
              facts_of({node_of("FusedMatMul", attrs, {&a, &b}, {&y})}, {&a, &b}, {&y});
          run_kernel(*def, facts, {&a, &b}, {&y}, two_threads);
          expect_close(y, expected, 0, 0, "y");
        }
      }
}

TEST(MatMul, TakesBatches) {
  // A batch of many small products, of few large ones, and a right factor for all.
  for (const auto& [batch, m, n, k] :
       {std::array<int64_t, 4>{37, 5, 9, 11}, {3, 65, 64, 65}, {2, 300, 260, 270}}) {
    Tensor a = Tensor::random(DType::Float32, {batch, m, k}, 1);
    Tensor b = Tensor::random(DType::Float32, {batch, k, n}, 2);
    Tensor shared = Tensor::random(DType::Float32, {k, n}, 3);
    check_product("MatMul", {}, a, b, nullptr, {batch, m, n});
    check_product("MatMul", {}, a, shared, nullptr, {batch, m, n});
    // Heads that are neighbours in memory: rows and batch do not nest.
    Tensor strided = Tensor::random(DType::Float32, {batch, m, k}, 4, -2, 2, {k, batch * k, 1});
    check_product("MatMul", {}, strided, b, nullptr, {batch, m, n});
    check_product("MatMul", {}, strided, shared, nullptr, {batch, m, n});
  }
}

TEST(Gemm, AddsAnyOperandThatBroadcasts) {
  constexpr int64_t m = 21, n = 37, k = 270;
  for (DType dtype : {DType::Float32, DType::Float64})
    for (const Sizes& sizes : {Sizes{m, n}, Sizes{1, n}, Sizes{m, 1}, Sizes{1, 1}}) {
      Tensor a = Tensor::random(dtype, {m, k}, 1), b = Tensor::random(dtype, {n, k}, 2);
      Tensor c = Tensor::random(dtype, sizes, 3);
      const Attrs attrs{{"transB", int64_t{1}}, {"alpha", 0.75}, {"beta", -2.0}};
      check_product("Gemm", attrs, a, b, &c, {m, n});
    }
}

TEST(MatMul, KeepsNaNAndInfinitiesWhereTheyBelong) {
  const double inf = std::numeric_limits<double>::infinity();
  Tensor a = Tensor::random(DType::Float32, {20, 40}, 1, 1, 2);
  Tensor b = Tensor::random(DType::Float32, {40, 50}, 2, 1, 2);
  a.set(3 * 40 + 5, inf);
  a.set(7 * 40 + 39, std::nan(""));
  b.set(11 * 50 + 49, -inf);
  check_product("MatMul", {}, a, b, nullptr, {20, 50});
}

}  // namespace
}  // namespace ortmodule::testing
