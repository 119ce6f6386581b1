// Products of integers of 8 bits against sums in 64 bits: every copy of the kernels, and the step
// of four products at once with its instruction written out, which not every machine has.
#include "base/integer_panels.h"
#include "kernels/cpu/integer_rests.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

enum class Content { Random, Extreme, RarelyExtreme };

/// Integers of the type; extreme ones are its two ends, with runs of equal signs, as those make
/// instructions of 16 bits saturate. Rarely extreme ones lie around the middle, but for a pair of
/// neighbours in five hundred or the column beside it.
Tensor bytes(DType dtype, Sizes sizes, unsigned seed, Content content, Sizes strides = {}) {
  const int low = dtype == DType::Int8 ? -128 : 0, high = low + 255;
  Tensor t(dtype, std::move(sizes), std::move(strides));
  std::mt19937 draw(seed);
  const int64_t row = t.sizes().empty() ? 1 : t.sizes().back();
  for (int64_t i = 0; i < t.count(); ++i)
    t.set(i, content == Content::RarelyExtreme ? low + 96 + static_cast<int>(draw() % 64)
             : content == Content::Random      ? low + static_cast<int>(draw() % 256)
             : draw() % 8 == 0                 ? low
                                               : high);
  if (content == Content::RarelyExtreme)
    for (int64_t i = 0; i + row < t.count(); ++i)
      if (draw() % 1000 == 0) {
        t.set(i, draw() % 2 ? low : high);
        t.set(i + row, t.get(i));
      }
  return t;
}

int64_t at(const Tensor* t, int64_t i) {
  return t ? static_cast<int64_t>(t->get(t->count() == 1 ? 0 : i)) : 0;
}

struct Case {
  int64_t rows, columns, inner;
  DType a, b;
  Content content;
  int64_t a_zeros = 0, b_zeros = 0;  // 0: none, 1: one, else one for each
  bool turned = false;               // b is a transposed view
};

struct Operands {
  Tensor a, b, a_zero, b_zero;
  explicit Operands(const Case& c)
      : a(bytes(c.a, {c.rows, c.inner}, 1,
                c.content == Content::Random ? Content::Random : Content::Extreme)),
        b(bytes(c.b, {c.inner, c.columns}, 2, c.content,
                c.turned ? Sizes{1, std::max<int64_t>(c.inner, 1)} : Sizes{})),
        a_zero(bytes(c.a, c.a_zeros > 1 ? Sizes{c.rows} : Sizes{}, 3, Content::Random)),
        b_zero(bytes(c.b, c.b_zeros > 1 ? Sizes{c.columns} : Sizes{}, 4, Content::Random)) {}
};

void expect_products(const Case& c, const Operands& x, const Tensor& y) {
  const Tensor* za = c.a_zeros ? &x.a_zero : nullptr;
  const Tensor* zb = c.b_zeros ? &x.b_zero : nullptr;
  const std::vector<double> a = x.a.values(), b = x.b.values(), sums = y.values();
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.columns; ++j) {
      const int64_t a_zero = at(za, i), b_zero = at(zb, j);
      int64_t sum = 0;
      for (int64_t k = 0; k < c.inner; ++k)
        sum += (static_cast<int64_t>(a[static_cast<size_t>(i * c.inner + k)]) - a_zero) *
               (static_cast<int64_t>(b[static_cast<size_t>(k * c.columns + j)]) - b_zero);
      ASSERT_EQ(static_cast<int64_t>(sums[static_cast<size_t>(i * c.columns + j)]), sum)
          << i << ", " << j;
    }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<std::array<int64_t, 3>> sizes = {{1, 1, 1},     {1, 37, 5},  {3, 16, 64},
                                                     {7, 33, 31},   {17, 50, 9}, {14, 270, 130},
                                                     {2, 20, 1030}, {130, 35, 7}};
  for (auto [rows, columns, inner] : sizes)
    for (DType a : {DType::UInt8, DType::Int8})
      for (DType b : {DType::Int8, DType::UInt8})
        for (Content content : {Content::Random, Content::Extreme}) {
          all.push_back({rows, columns, inner, a, b, content, 1, 0, false});
          all.push_back({rows, columns, inner, a, b, content, 2, 2, true});
        }
  // Several pieces of the inner dimension and several panels, the last one not whole.
  for (auto [rows, columns, inner] : std::vector<std::array<int64_t, 3>>{
           {1, 64, 260}, {5, 48, 401}, {13, 79, 2102}, {127, 527, 300}})
    for (DType b : {DType::Int8, DType::UInt8})
      all.push_back({rows, columns, inner, DType::UInt8, b, Content::RarelyExtreme, 1, 1, false});
  all.push_back({4, 5, 0, DType::UInt8, DType::Int8, Content::Random, 1, 1});
  all.push_back({0, 5, 3, DType::UInt8, DType::Int8, Content::Random, 1, 1});
  all.push_back({4, 24, 6, DType::UInt8, DType::UInt8, Content::Random, 0, 0});
  all.push_back({4, 24, 6, DType::Int8, DType::Int8, Content::Random, 0, 1});
  return all;
}

std::string text(const Case& c) {
  return str(c.rows, " x ", c.inner, " x ", c.columns, " ", name_of(c.a), " ", name_of(c.b), " ",
             c.content == Content::Extreme         ? "extreme "
             : c.content == Content::RarelyExtreme ? "rarely extreme "
                                                   : "",
             c.a_zeros, c.b_zeros, c.turned);
}

TEST(IntegerProducts, MatrixIsExact) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    Operands x(c);
    Tensor y(DType::Int32, {c.rows, c.columns});
    run_kernel_named("matmul_integer_cpu", "MatMulInteger", {},
                     {&x.a, &x.b, c.a_zeros ? &x.a_zero : nullptr, c.b_zeros ? &x.b_zero : nullptr},
                     {&y}, [&] { expect_products(c, x, y); });
  }
}

// Copies lay out panels in their own way, so each must read what it packed itself.
TEST(IntegerProducts, PackedWeightsAreExact) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    Operands x(c);
    Tensor y(DType::Int32, {c.rows, c.columns}),
        panels(DType::Int8, {integer_panel_bytes(c.inner, c.columns)});
    const Attrs attrs{{"columns", c.columns}, {"unsigned_b", c.b == DType::UInt8 ? 1 : 0}};
    const std::vector<Tensor*> in{&x.a,
                                  &panels,
                                  nullptr,
                                  nullptr,
                                  c.a_zeros ? &x.a_zero : nullptr,
                                  c.b_zeros ? &x.b_zero : nullptr};
    const StepFacts packing =
        facts_of({node_of("PackIntegerMatrix", {}, {&x.b}, {&panels})}, {&x.b}, {&panels});
    const StepFacts product = facts_of({node_of("PackedMatMulInteger", attrs, in, {&y})}, in, {&y});
    const auto packers = kernels_of("PackIntegerMatrix"),
               products = kernels_of("PackedMatMulInteger");
    ASSERT_EQ(packers.size(), products.size());
    for (size_t i = 0; i < packers.size(); ++i) {
      if (packers[i]->unsupported(packing)) continue;
      run_kernel(*packers[i], packing, {&x.b}, {&panels}, two_threads);
      run_kernel(*products[i], product, in, {&y}, two_threads);
      expect_products(c, x, y);
    }
  }
}

TEST(IntegerProducts, BatchesBroadcast) {
  Tensor a = bytes(DType::UInt8, {3, 2, 5, 11}, 1, Content::Extreme),
         b = bytes(DType::Int8, {2, 11, 7}, 2, Content::Extreme), zero(DType::UInt8, {}),
         y(DType::Int32, {3, 2, 5, 7});
  zero.set(0, 200);
  run_kernel_named("matmul_integer_cpu", "MatMulInteger", {}, {&a, &b, &zero}, {&y}, [&] {
    for (int64_t i = 0; i < y.count(); ++i) {
      int64_t sum = 0;
      const int64_t row = i / 7, matrix = i / 35 % 2;
      for (int64_t k = 0; k < 11; ++k)
        sum += (at(&a, row * 11 + k) - 200) * at(&b, (matrix * 11 + k) * 7 + i % 7);
      ASSERT_EQ(static_cast<int64_t>(y.get(i)), sum) << i;
    }
  });
}

TEST(IntegerProducts, ScalesAndBiasRoundAsTheirNodes) {
  const Case c{9, 21, 40, DType::UInt8, DType::Int8, Content::Random, 1, 2};
  Operands x(c);
  Tensor sums(DType::Int32, {9, 21}), y(DType::Float32, {9, 21}),
      a_scale = Tensor::of(DType::Float32, {}, {0.037}),
      b_scale = Tensor::random(DType::Float32, {21}, 5, 0.001, 0.1),
      bias = Tensor::random(DType::Float32, {21}, 6);
  run_kernel_named("matmul_integer_cpu", "MatMulInteger", {}, {&x.a, &x.b, &x.a_zero, &x.b_zero},
                   {&sums}, [] {});
  run_kernel_named("matmul_integer_to_float_cpu", "MatMulIntegerToFloat", {},
                   {&x.a, &x.b, &a_scale, &b_scale, &x.a_zero, &x.b_zero, &bias}, {&y}, [&] {
                     for (int64_t i = 0; i < y.count(); ++i) {
                       const auto factor = static_cast<float>(a_scale.get(0)) *
                                           static_cast<float>(b_scale.get(i % 21));
                       const float real = static_cast<float>(sums.get(i)) * factor;
                       ASSERT_EQ(y.get(i), real + static_cast<float>(bias.get(i % 21)));
                     }
                   });
}

// --- four products at once, with the instructions written out ------------------------------------
struct SixteenLanes {
  int32_t lane[16];
  friend SixteenLanes operator-(int32_t value, const SixteenLanes& zeros) {
    SixteenLanes all;
    for (int i = 0; i < 16; ++i) all.lane[i] = value - zeros.lane[i];
    return all;
  }
  SixteenLanes& operator+=(const SixteenLanes& other) {
    for (int i = 0; i < 16; ++i) lane[i] += other.lane[i];
    return *this;
  }
};

// So many pairs are summed in 16 bits; 0: in 32.
template <int64_t kSums>
struct WrittenOut {
  using Lanes = SixteenLanes;
  static constexpr int64_t kTogether = std::max<int64_t>(kSums, 1);
  static Lanes multiply_add(const Lanes (&a)[kTogether], const Lanes (&b)[kTogether], Lanes sum) {
    uint8_t left[kTogether][64];
    int8_t right[kTogether][64];
    std::memcpy(left, &a, sizeof(left));
    std::memcpy(right, &b, sizeof(right));
    for (int i = 0; i < 64; i += 2) {
      int sums = 0;
      for (int64_t t = 0; t < kTogether; ++t) {
        const int pair = left[t][i] * right[t][i] + left[t][i + 1] * right[t][i + 1];
        sums += kSums ? std::clamp(pair, -32768, 32767) : pair;
      }
      sum.lane[i / 4] += kSums ? static_cast<int16_t>(sums) : sums;
    }
    return sum;
  }
};

// The sums of a product whose panels and list are in `packed`.
template <class Dot>
void multiply_packed(const Case& c, Tensor& a, const std::vector<int8_t>& packed, bool has_rests,
                     Tensor& y) {
  const int64_t padded = padded_inner(c.inner);
  const IntegerProduct<Dot> product(c.rows, c.columns, c.inner);
  const WeightRests list(packed.data(), c.inner, c.columns, product.piece_of(c.inner));
  product.run(
      0, product.units(),
      [&](int64_t row, int64_t rows, int64_t first, int64_t inner, uint8_t* to, auto& part) {
        pack_integer_rows<Dot>({static_cast<const uint8_t*>(a.data()) + row * c.inner + first, rows,
                                inner, c.inner, 1},
                               0, to, part);
      },
      [&](int64_t first, int64_t, int64_t column, int64_t) {
        return std::pair(packed.data() + column * padded + first * kIntegerPanel,
                         padded * kIntegerPanel);
      },
      [&](int64_t row, int64_t rows, int64_t column, int64_t columns, const int32_t* sums,
          int64_t stride) {
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t j = 0; j < columns; ++j)
            y.set((row + r) * c.columns + column + j, sums[r * stride + j]);
      },
      [&](const auto&... part) {
        if (has_rests) list.template add<Dot>(part...);
      });
}

template <class Dot>
std::vector<int8_t> packed_panels(const Case& c, Tensor& b) {
  std::vector<int8_t> packed(static_cast<size_t>(integer_panel_bytes(c.inner, c.columns)),
                             int8_t{0x5a});
  pack_integer_panels<Dot>({static_cast<const int8_t*>(b.data()), c.inner, c.columns,
                            b.layout().strides[0], b.layout().strides[1]},
                           0, padded_inner(c.inner), packed.data());
  return packed;
}

// Of unsigned and signed bytes.
std::vector<Case> plain_cases() {
  std::vector<Case> plain;
  for (Case c : cases()) {
    if (c.a != DType::UInt8 || c.b != DType::Int8 || c.rows * c.columns == 0) continue;
    c.a_zeros = c.b_zeros = 0;
    plain.push_back(c);
  }
  return plain;
}

TEST(IntegerProducts, FourAtOnceAreExact) {
  using Dot = QuadDot<WrittenOut<0>>;
  for (const Case& c : plain_cases()) {
    SCOPED_TRACE(text(c));
    Operands x(c);
    Tensor y(DType::Int32, {c.rows, c.columns});
    multiply_packed<Dot>(c, x.a, packed_panels<Dot>(c, x.b), false, y);
    expect_products(c, x, y);
  }
}

template <int64_t kSums>
void expect_exact_with_rests() {
  using Dot = QuadDot<WrittenOut<kSums>>;
  int lists = 0;
  for (const Case& c : plain_cases()) {
    SCOPED_TRACE(text(c));
    Operands x(c);
    Tensor y(DType::Int32, {c.rows, c.columns});
    std::vector<int8_t> packed = packed_panels<Dot>(c, x.b);
    const std::vector<int8_t> panels(packed.begin(),
                                     packed.begin() + integer_sums_end(c.inner, c.columns));
    const int64_t piece = IntegerProduct<Dot>::piece_of(c.inner);
    const bool took =
        take_rests<kSums>({.parallel_for = two_threads}, packed.data(), c.inner, c.columns, piece);
    EXPECT_EQ(took, c.content == Content::RarelyExtreme);
    EXPECT_EQ(WeightRests(packed.data(), c.inner, c.columns, piece).together(), took ? kSums : 0);
    EXPECT_EQ(took, !std::equal(panels.begin(), panels.end(), packed.begin()));
    if (!took) continue;
    multiply_packed<Dot>(c, x.a, packed, true, y);
    expect_products(c, x, y);
    ++lists;
  }
  EXPECT_GT(lists, 3);
}

TEST(IntegerProducts, SaturatingPairsAreExactWithRests) { expect_exact_with_rests<1>(); }
TEST(IntegerProducts, SaturatingFoursAreExactWithRests) { expect_exact_with_rests<2>(); }

template <int64_t kTogether>
void expect_safe(int8_t (&groups)[kTogether * kQuadBytes]) {
  int8_t before[kTogether * kQuadBytes];
  std::memcpy(before, groups, sizeof(before));
  bool any = false;
  for_each_rest_of<kTogether>(groups, kQuadBytes, [&](int64_t which, int rest) {
    int8_t& weight = groups[which / 2 * kQuadBytes + which % 2];
    ASSERT_TRUE(rest != 0 && rest >= -128 && rest < 128 && rest * weight > 0);
    weight = static_cast<int8_t>(weight - rest);
    any = true;
  });
  EXPECT_EQ(any, have_rests<kTogether>(before));
  int most = 0, least = 0;
  for (int64_t i = 0; i < kTogether * 2; ++i) {
    const int weight = groups[i / 2 * kQuadBytes + i % 2];
    (weight > 0 ? most : least) += 255 * weight;
  }
  ASSERT_TRUE(least >= -32768 && most <= 32767) << least << ", " << most;
}

TEST(IntegerProducts, WhatStaysInPanelsIsSafe) {
  for (int first = -128; first < 128; ++first)
    for (int second = -128; second < 128; ++second) {
      int8_t pair[kQuadBytes] = {static_cast<int8_t>(first), static_cast<int8_t>(second)};
      expect_safe<1>(pair);
      int8_t four[2 * kQuadBytes] = {static_cast<int8_t>(first), static_cast<int8_t>(second)};
      four[kQuadBytes] = static_cast<int8_t>(second);
      four[kQuadBytes + 1] = static_cast<int8_t>(first / 2);
      expect_safe<2>(four);
    }
}

// --- DynamicQuantizeLinear -----------------------------------------------------------------------
void expect_quantized(Tensor& x) {
  Tensor y(DType::UInt8, x.sizes()), scale(DType::Float32, {}), zero(DType::UInt8, {});
  float least = 0, most = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    least = std::min(least, static_cast<float>(x.get(i)));
    most = std::max(most, static_cast<float>(x.get(i)));
  }
  const float step = most == least ? 1.0f : (most - least) / 255.0f;
  const float point = std::clamp(std::nearbyint(-least / step), 0.0f, 255.0f);
  run_kernel_named(
      "dynamic_quantize_linear_cpu", "DynamicQuantizeLinear", {}, {&x}, {&y, &scale, &zero}, [&] {
        EXPECT_EQ(scale.get(0), step);
        EXPECT_EQ(zero.get(0), point);
        for (int64_t i = 0; i < x.count(); ++i) {
          const float place = std::nearbyint(static_cast<float>(x.get(i)) / step) + point;
          ASSERT_EQ(y.get(i), std::clamp(place, 0.0f, 255.0f)) << i;
        }
      });
}

TEST(IntegerProducts, DynamicQuantizationIsThatOfONNX) {
  Tensor x = Tensor::random(DType::Float32, {7, 13, 1001}, 1, -3, 5);
  expect_quantized(x);
  Tensor positive = Tensor::random(DType::Float32, {9}, 2, 1, 5);
  expect_quantized(positive);
  Tensor negative = Tensor::random(DType::Float32, {3, 3}, 3, -5, -1);
  expect_quantized(negative);
  Tensor zeros = Tensor::of(DType::Float32, {4}, {0, 0, 0, 0});
  expect_quantized(zeros);
  // Halves, which round to even.
  Tensor halves = Tensor::of(DType::Float32, {6}, {0, 255, 0.5, 1.5, 2.5, 253.5});
  expect_quantized(halves);
  Tensor none(DType::Float32, {0, 3});
  expect_quantized(none);
}

}  // namespace
}  // namespace ortmodule::testing
