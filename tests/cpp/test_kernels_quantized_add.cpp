// Sums and products of dequantized tensors that are quantized again, against the definition.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

Tensor bytes_of(DType dtype, const Sizes& sizes, unsigned seed, const Sizes& strides = {}) {
  const double low = dtype == DType::Int8 ? -128 : 0;
  Tensor t = Tensor::random(DType::Float32, sizes, seed, low, low + 255);
  Tensor bytes(dtype, sizes, strides);
  for (int64_t i = 0; i < t.count(); ++i) bytes.set(i, std::round(t.get(i)));
  return bytes;
}

Tensor number(DType dtype, double value) { return Tensor::of(dtype, {}, {value}); }

// Both layouts, and operands of one each.
void check_pair(const std::string& op, float y_scale_number) {
  const Sizes sizes{2, 5, 3, 7}, last{105, 1, 35, 5};
  for (DType a_type : {DType::UInt8, DType::Int8})
    for (DType y_type : {DType::UInt8, DType::Int8})
      for (const auto& [of_a, of_b] :
           {std::pair(Sizes(), Sizes()), {last, last}, {last, Sizes()}, {Sizes(), last}})
        for (int64_t relu : {0, 1}) {
          const DType b_type = relu ? DType::Int8 : DType::UInt8;
          SCOPED_TRACE(str(name_of(a_type), " ", name_of(y_type), " ", relu));
          Tensor a = bytes_of(a_type, sizes, 1, of_a), b = bytes_of(b_type, sizes, 2, of_b),
                 y(y_type, sizes, of_a);
          Tensor a_scale = number(DType::Float32, 0.25), b_scale = number(DType::Float32, 0.031),
                 y_scale = number(DType::Float32, y_scale_number), a_zero = number(a_type, 7),
                 y_zero = number(y_type, 3);
          std::vector<double> wanted;
          for (int64_t i = 0; i < a.count(); ++i) {
            const float real_a = (static_cast<float>(a.get(i)) - 7.0f) * 0.25f,
                        real_b = static_cast<float>(b.get(i)) * 0.031f;
            float real = op == "QuantizedAdd" ? real_a + real_b : real_a * real_b;
            if (relu) real = std::max(real, 0.0f);
            const double low = y_type == DType::Int8 ? -128 : 0;
            wanted.push_back(
                std::clamp(double{std::nearbyint(real / y_scale_number)} + 3, low, low + 255));
          }
          run_all_kernels(
              op,
              facts_of({node_of(op, {{"relu", relu}},
                                {&a, &b, &a_scale, &b_scale, &a_zero, nullptr, &y_scale, &y_zero},
                                {&y})},
                       {&a, &b, &a_scale, &b_scale, &a_zero, nullptr, &y_scale, &y_zero}, {&y}),
              {&a, &b, &a_scale, &b_scale, &a_zero, nullptr, &y_scale, &y_zero}, {&y},
              [&] { ASSERT_EQ(y.values(), wanted); });
        }
}

TEST(QuantizedPairs, RoundTheSumOfRealNumbers) { check_pair("QuantizedAdd", 0.5f); }
TEST(QuantizedPairs, RoundTheProductOfRealNumbers) { check_pair("QuantizedMul", 0.75f); }

// Every byte with a quarter of the others. With scales of 0.25, 0.125 and 0.5 a quarter of the sums
// lies in the middle of two integers; results beyond all bytes, and beyond what fixed point takes,
// saturate.
void check_all_bytes(const std::string& op) {
  struct Case {
    double a, b, y;
    int64_t relu;
  };
  for (const Case& c : {Case{0.0213, 0.0317, 0.0511, 0},
                        {0.25, 0.125, 0.5, 0},
                        {0.02, 0.03, 0.02, 1},
                        {0.5, 0.7, 0.013, 0},
                        {1.0, 3e-4, 1e-7, 0},
                        {0.01, 0.02, 7.0, 1}})
    for (DType type : {DType::UInt8, DType::Int8}) {
      SCOPED_TRACE(str(name_of(type), " ", c.a, " ", c.b, " ", c.y));
      const double low = type == DType::Int8 ? -128 : 0;
      Tensor a(type, {256, 64}), b(type, {256, 64}), y(type, {256, 64});
      const auto a_scale_number = static_cast<float>(c.a), b_scale_number = static_cast<float>(c.b),
                 y_scale_number = static_cast<float>(c.y);
      std::vector<double> wanted;
      for (int64_t i = 0; i < a.count(); ++i) {
        a.set(i, low + static_cast<double>(i / 64));
        b.set(i, low + static_cast<double>(i % 64 * 4 + i / 64 % 4));
        const float real_a = (static_cast<float>(a.get(i)) - 7.0f) * a_scale_number,
                    real_b = (static_cast<float>(b.get(i)) - 100.0f) * b_scale_number;
        float real = op == "QuantizedAdd" ? real_a + real_b : real_a * real_b;
        if (c.relu) real = std::max(real, 0.0f);
        const double steps = double{std::nearbyint(real / y_scale_number)};
        wanted.push_back(std::clamp(steps + 3, low, low + 255));
      }
      Tensor a_scale = number(DType::Float32, c.a), b_scale = number(DType::Float32, c.b),
             y_scale = number(DType::Float32, c.y), a_zero = number(type, 7),
             b_zero = number(type, 100), y_zero = number(type, 3);
      const std::vector<Tensor*> operands{&a,      &b,      &a_scale, &b_scale,
                                          &a_zero, &b_zero, &y_scale, &y_zero};
      run_all_kernels(op,
                      facts_of({node_of(op, {{"relu", c.relu}}, operands, {&y})}, operands, {&y}),
                      operands, {&y}, [&] { ASSERT_EQ(y.values(), wanted); });
    }
}

TEST(QuantizedPairs, SumsOfAllBytesAreThoseOfRealNumbers) { check_all_bytes("QuantizedAdd"); }
TEST(QuantizedPairs, ProductsOfAllBytesAreThoseOfRealNumbers) { check_all_bytes("QuantizedMul"); }

// Scales of 1 / 8 and 2: a quarter of the products lies in the middle of two integers.
TEST(QuantizedPairs, RoundProductsOfIntegersWithTheirZeroPoint) {
  const Sizes sizes{2, 5, 3, 7}, last{105, 1, 35, 5};
  for (DType type : {DType::UInt8, DType::Int8})
    for (DType b_type : {DType::UInt8, DType::Int8})
      for (float ratio : {2.0f, 0.0371f}) {
        const double low = type == DType::Int8 ? -128 : 0;
        Tensor a = bytes_of(type, sizes, 1, last), b = bytes_of(b_type, sizes, 2),
               y(type, sizes, last), scale = number(DType::Float32, 0.125),
               factor = number(DType::Float32, ratio), a_zero = number(type, 7),
               y_zero = number(type, low + 131);
        std::vector<double> wanted;
        for (int64_t i = 0; i < a.count(); ++i) {
          const auto product = static_cast<float>((a.get(i) - 7) * b.get(i));
          const float placed = product * 0.125f * ratio + static_cast<float>(low + 131);
          wanted.push_back(std::clamp(double{std::nearbyint(placed)}, low, low + 255));
        }
        const std::vector<Tensor*> operands{&a, &b, &a_zero, nullptr, &scale, &factor, &y_zero};
        run_all_kernels(
            "QuantizedIntegerMul",
            facts_of({node_of("QuantizedIntegerMul", {}, operands, {&y})}, operands, {&y}),
            operands, {&y}, [&] { ASSERT_EQ(y.values(), wanted); });
      }
}

// Few numbers, and so many that the 256 results are computed first.
TEST(Requantize, RoundsRealNumbers) {
  for (const Sizes& sizes : {Sizes{3, 37}, Sizes{5, 611}})
    for (DType x_type : {DType::UInt8, DType::Int8})
      for (int64_t relu : {0, 1}) {
        Tensor x = bytes_of(x_type, sizes, 1), y(DType::Int8, sizes);
        Tensor x_scale = number(DType::Float32, 0.25), y_scale = number(DType::Float32, 0.5),
               x_zero = number(x_type, 9), y_zero = number(DType::Int8, -3);
        std::vector<double> wanted;
        for (double value : x.values()) {
          const double real = (value - 9) * 0.25;
          wanted.push_back(std::clamp(std::nearbyint((relu ? std::max(real, 0.0) : real) / 0.5) - 3,
                                      -128.0, 127.0));
        }
        const std::vector<Tensor*> in{&x, &x_scale, &x_zero, &y_scale, &y_zero};
        run_all_kernels("Requantize",
                        facts_of({node_of("Requantize", {{"relu", relu}}, in, {&y})}, in, {&y}), in,
                        {&y}, [&] { ASSERT_EQ(y.values(), wanted); });
      }
}

}  // namespace
}  // namespace ortmodule::testing
