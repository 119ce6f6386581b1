// MatMulNBits against sums in double precision: every copy of the kernels, with x as it is and
// rounded to 8 bits.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct Case {
  int64_t rows, inner, columns, bits, block;
  bool zeros;

  int64_t blocks() const { return (inner + block - 1) / block; }
  Attrs attrs(bool rounds) const {
    return {{"K", inner},
            {"N", columns},
            {"bits", bits},
            {"block_size", block},
            {"rounds_x", rounds ? 1 : 0}};
  }
  std::string text() const {
    return str(rows, " x ", inner, " x ", columns, ", ", bits, " bits by ", block, zeros);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int64_t bits : {2, 4, 8})
    for (bool zeros : {false, true})
      for (auto [rows, inner, columns, block] :
           std::vector<std::array<int64_t, 4>>{{1, 64, 9, 32},
                                               {3, 100, 5, 16},
                                               {6, 1000, 3, 64},
                                               {5, 700, 6, 128},
                                               {2, 4500, 7, 256},
                                               {1, 16, 1, 16},
                                               {40, 200, 11, 1024},
                                               {42, 300, 70, 32},
                                               {43, 4112, 2, 16}})
        all.push_back({rows, inner, columns, bits, block, zeros});
  return all;
}

struct Operands {
  Tensor x, w, scales, zeros;
  explicit Operands(const Case& c)
      : x(Tensor::random(DType::Float32, {c.rows, c.inner}, 1)),
        w(random_bytes({c.columns, c.blocks(), c.block * c.bits / 8}, 2)),
        scales(Tensor::random(DType::Float32, {c.columns * c.blocks()}, 3, 0.01, 0.1)),
        zeros(random_bytes({c.columns * ((c.blocks() * c.bits + 7) / 8)}, 4)) {}

  static Tensor random_bytes(Sizes sizes, unsigned seed) {
    Tensor t(DType::UInt8, std::move(sizes));
    std::mt19937 draw(seed);
    for (int64_t i = 0; i < t.count(); ++i) t.set(i, static_cast<int>(draw() % 256));
    return t;
  }

  std::vector<Tensor*> inputs(const Case& c) {
    std::vector<Tensor*> in{&x, &w, &scales};
    if (c.zeros) in.push_back(&zeros);
    return in;
  }
};

// The number of `bits` bits at place i of packed bytes that start at `byte`.
double number_at(const Tensor& bytes, int64_t byte, int64_t i, int64_t bits) {
  const auto all = static_cast<int64_t>(bytes.get(byte + i * bits / 8));
  return static_cast<double>((all >> (i * bits % 8)) & ((1 << bits) - 1));
}

double weight(const Case& c, const Operands& o, int64_t k, int64_t j) {
  const int64_t block = k / c.block;
  const double zero = c.zeros
                          ? number_at(o.zeros, j * ((c.blocks() * c.bits + 7) / 8), block, c.bits)
                          : static_cast<double>(1 << (c.bits - 1));
  const double number = number_at(o.w, j * c.blocks() * c.block * c.bits / 8, k, c.bits);
  return (number - zero) * o.scales.get(j * c.blocks() + block);
}

// Each block of a row rounded by its largest magnitude.
Tensor rounded(const Case& c, const Tensor& x) {
  Tensor y(DType::Float32, {c.rows, c.inner});
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t first = 0; first < c.inner; first += c.block) {
      const int64_t begin = row * c.inner + first;
      const int64_t end = begin + std::min(c.block, c.inner - first);
      float most = 0.0f;
      for (int64_t i = begin; i < end; ++i)
        most = std::max(most, std::abs(static_cast<float>(x.get(i))));
      const float scale = most / 127.0f, inverse = most > 0.0f ? 1.0f / scale : 0.0f;
      for (int64_t i = begin; i < end; ++i)
        y.set(i, std::nearbyint(static_cast<float>(x.get(i)) * inverse) * scale);
    }
  return y;
}

void expect_product(const Case& c, const Operands& o, const Tensor& x, const Tensor& y) {
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.columns; ++j) {
      double sum = 0.0, magnitude = 0.0;
      for (int64_t k = 0; k < c.inner; ++k) {
        const double each = x.get(i * c.inner + k) * weight(c, o, k, j);
        sum += each;
        magnitude += std::abs(each);
      }
      ASSERT_NEAR(y.get(i * c.columns + j), sum, 1e-6 * (1.0 + magnitude)) << i << ", " << j;
    }
}

constexpr std::string_view kPlain = "matmul_n_bits_cpu", kRounded = "matmul_n_bits_rounded_cpu";

/// The kernel of this processor for an accuracy level of 4.
std::string_view kernel_of(const Case& c, Operands& o, Tensor& y) {
  const std::vector<Tensor*> in = o.inputs(c);
  const StepFacts facts = facts_of({node_of("MatMulNBits", c.attrs(true), in, {&y})}, in, {&y});
  for (const KernelDef* def : kernels_of("MatMulNBits"))
    if (def->name == kRounded && !def->unsupported(facts)) return kRounded;
  return kPlain;
}

TEST(FewBits, ProductsAreThoseOfRealWeights) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    Operands o(c);
    Tensor y(DType::Float32, {c.rows, c.columns});
    run_kernel_named(kPlain, "MatMulNBits", c.attrs(false), o.inputs(c), {&y},
                     [&] { expect_product(c, o, o.x, y); });
  }
}

// Where the processor cannot round, rows stay as they are.
TEST(FewBits, RoundedRowsGiveExactSumsOfIntegers) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    Operands o(c);
    for (int64_t i = 0; i < std::min<int64_t>(c.inner, c.block); ++i) o.x.set(i, 0.0);
    Tensor y(DType::Float32, {c.rows, c.columns});
    const std::string_view kernel = kernel_of(c, o, y);
    if (c.bits < 8) {
      EXPECT_EQ(kernel == kRounded, isa_available(Isa::Avx2));
    }
    const Tensor x = kernel == kRounded ? rounded(c, o.x) : o.x;
    run_kernel_named(kernel, "MatMulNBits", c.attrs(true), o.inputs(c), {&y},
                     [&] { expect_product(c, o, x, y); });
  }
}

TEST(FewBits, OnlyRowsThatAreNotFiniteBecomeNaN) {
  for (int64_t rows : {5, 21}) {
    const Case c{rows, 96, 6, 4, 32, true};
    Operands o(c);
    const auto infinity = std::numeric_limits<double>::infinity();
    o.x.set(1 * c.inner + 50, infinity);
    o.x.set(3 * c.inner + 95, std::numeric_limits<double>::quiet_NaN());
    for (int64_t k = 0; k < c.inner; ++k) o.x.set(4 * c.inner + k, 1e-42);
    Tensor y(DType::Float32, {c.rows, c.columns});
    run_kernel_named(
        "matmul_n_bits_rounded_cpu", "MatMulNBits", c.attrs(true), o.inputs(c), {&y}, [&] {
          for (int64_t i = 0; i < y.count(); ++i)
            EXPECT_EQ(std::isnan(y.get(i)), i / c.columns == 1 || i / c.columns == 3) << i;
        });
  }
}

}  // namespace
}  // namespace ortmodule::testing
