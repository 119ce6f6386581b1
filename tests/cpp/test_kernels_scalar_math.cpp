// Accuracy of the vectorizable functions against double, over floats of every exponent.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

// Error in units of the last place of the float nearest to `exact`; very large where one is NaN or
// infinite and the other is not, or for a zero of the other sign.
double ulps(float actual, double exact) {
  const float nearest = static_cast<float>(exact);
  if (std::isnan(actual) || std::isnan(nearest))
    return std::isnan(actual) && std::isnan(nearest) ? 0 : 1e30;
  if (std::isinf(nearest) || std::isinf(actual)) return nearest == actual ? 0 : 1e30;
  if (actual == 0 && exact == 0 && std::signbit(actual) != std::signbit(exact)) return 1e30;
  int exponent;
  std::frexp(exact, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(actual - exact) / unit;
}

template <class Fast, class Exact>
double worst_ulps(const Fast& fast, const Exact& exact, float* where) {
  double worst = 0;
  for (uint64_t bits = 0; bits < 0x7f800000ull; bits += 1021) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const float x = float_of(static_cast<uint32_t>(bits) | sign);
      const double error = ulps(fast(x), exact(static_cast<double>(x)));
      if (error > worst) worst = error, *where = x;
    }
  }
  return worst;
}

const float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(ScalarMath, ExpIsWithinTwoUlps) {
  float where = 0;
  const auto exp_or_zero = [](double x) { return x < -86.64 ? 0.0 : std::exp(x); };
  EXPECT_LE(worst_ulps([](float x) { return fast_exp(x); }, exp_or_zero, &where), 2.0)
      << "at " << where;
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(kInfinity), kInfinity);
  EXPECT_EQ(fast_exp(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(fast_exp(kNaN)));
}

TEST(ScalarMath, TanhIsWithinTwoUlps) {
  float where = 0;
  EXPECT_LE(worst_ulps([](float x) { return fast_tanh(x); }, [](double x) { return std::tanh(x); },
                       &where),
            2.0)
      << "at " << where;
  EXPECT_EQ(fast_tanh(kInfinity), 1.0f);
  EXPECT_EQ(fast_tanh(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(fast_tanh(kNaN)));
}

TEST(ScalarMath, ErfIsWithinFourUlps) {
  float where = 0;
  EXPECT_LE(
      worst_ulps([](float x) { return fast_erf(x); }, [](double x) { return std::erf(x); }, &where),
      4.0)
      << "at " << where;
  EXPECT_EQ(fast_erf(kInfinity), 1.0f);
  EXPECT_EQ(fast_erf(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(fast_erf(kNaN)));
}

TEST(ScalarMath, NormalDistributionIsAccurate) {
  for (int i = -80000; i <= 80000; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double exact = 0.5 * std::erfc(-static_cast<double>(x) / std::sqrt(2.0));
    ASSERT_NEAR(normal_cdf(x), exact, 1.2e-7) << x;
    if (x > -6) {
      ASSERT_NEAR(normal_cdf(x) / exact, 1, 5e-6) << x;
    }
    const double density =
        std::exp(-0.5 * static_cast<double>(x) * static_cast<double>(x)) / std::sqrt(2 * M_PI);
    ASSERT_NEAR(normal_density(x), density, 1e-7) << x;
  }
  EXPECT_EQ(normal_cdf(kInfinity), 1.0f);
  EXPECT_EQ(normal_cdf(-1e4f), 0.0f);
  EXPECT_TRUE(std::isnan(normal_cdf(kNaN)));
  EXPECT_TRUE(std::isnan(fast_exp(float_of(0x7fffffffu))));
  EXPECT_TRUE(std::isnan(normal_cdf(float_of(0x7fffffffu))));
}

// The vector forms, through the kernels of every instruction set.
void check_arguments(const char* op, double allowed_ulps, double (*exact)(double),
                     const std::vector<double>& values, const Attrs& attrs = {}) {
  Tensor x = Tensor::of(DType::Float32, {static_cast<int64_t>(values.size())}, values);
  Tensor y(DType::Float32, x.sizes());
  const StepFacts facts = facts_of({node_of(op, attrs, {&x}, {&y})}, {&x}, {&y});
  run_all_kernels("PointwiseGroup", facts, {&x}, {&y}, [&] {
    for (int64_t i = 0; i < x.count(); ++i)
      ASSERT_LE(ulps(static_cast<float>(y.get(i)), exact(x.get(i))), allowed_ulps)
          << op << " of " << x.get(i);
  });
}
void check_kernels(const char* op, double allowed_ulps, double (*exact)(double),
                   const Attrs& attrs = {}) {
  std::vector<double> values{kInfinity, -kInfinity, kNaN, 1, -1};
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 30011)
    for (uint32_t sign : {0u, 0x80000000u}) values.push_back(float_of(bits | sign));
  check_arguments(op, allowed_ulps, exact, values, attrs);
}

TEST(ScalarMath, VectorsAreAsAccurate) {
  check_kernels("Exp", 2, [](double x) { return x < -86.64 ? 0.0 : std::exp(x); });
  check_kernels("Tanh", 2, [](double x) { return std::tanh(x); });
  check_kernels("Erf", 4, [](double x) { return std::erf(x); });
  check_kernels("Log", 1, [](double x) { return std::log(x); });
  check_kernels("Log1p", 2, [](double x) { return std::log1p(x); });
  check_kernels("Expm1", 2, [](double x) { return std::expm1(x); });
  check_kernels("Sin", 2, [](double x) { return std::sin(x); });
  check_kernels("Cos", 2, [](double x) { return std::cos(x); });
  check_kernels("Asin", 2, [](double x) { return std::asin(x); });
  check_kernels("Acos", 2, [](double x) { return std::acos(x); });
  check_kernels("Atan", 2, [](double x) { return std::atan(x); });
}

TEST(ScalarMath, LogarithmsAreAccurateAroundTheirZeros) {
  std::vector<double> around_one, around_zero;
  for (int i = -40000; i <= 40000; ++i) {
    around_one.push_back(float_of(static_cast<uint32_t>(0x3f800000 + i * 100)));
    around_zero.push_back(i * 2e-5);
  }
  check_arguments(
      "Log", 1, [](double x) { return std::log(x); }, around_one);
  check_arguments(
      "Log1p", 2, [](double x) { return std::log1p(x); }, around_zero);
  check_arguments(
      "Expm1", 2, [](double x) { return std::expm1(x); }, around_zero);
}

// Where almost all digits of the argument cancel, and where the standard library takes over.
TEST(ScalarMath, SinesAreAccurateAroundTheirZeros) {
  std::vector<double> values;
  for (int n = 1; n < 9000; ++n) {
    const float nearest = static_cast<float>(n * M_PI_2);
    for (float x : {nearest, std::nextafter(nearest, 0.0f), std::nextafter(nearest, kInfinity)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  check_arguments(
      "Sin", 2, [](double x) { return std::sin(x); }, values);
  check_arguments(
      "Cos", 2, [](double x) { return std::cos(x); }, values);
}

TEST(ScalarMath, ActivationsAreAsAccurate) {
  // Exponentials below 2^-125 are zero where something is added to them.
  check_kernels("Mish", 4, [](double x) {
    return x < -86.64 ? x * 0.0 : x * std::tanh(std::log1p(std::exp(x)));
  });
  check_kernels("LogSigmoid", 3, [](double x) {
    const double power = std::exp(-std::fabs(x));
    return std::min(x, 0.0) - (x > 86.64 ? 0.0 : std::log1p(power));
  });
  check_kernels("Elu", 3, [](double x) { return x > 0 ? x : 1.5 * std::expm1(x); },
                {{"alpha", 1.5}});
  check_kernels("Softplus", 3, [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); },
                {{"beta", 1.0}, {"threshold", 20.0}});
}

TEST(ScalarMath, PowersAreWithinOneUlp) {
  const std::vector<float> corners = {
      0.0f,    -0.0f,    1.0f,     -1.0f,     2.0f,          -2.0f,      0.5f,     -0.5f,
      3.0f,    -3.0f,    1.5f,     -7.0f,     kInfinity,     -kInfinity, kNaN,     1e-45f,
      -1e-45f, 3.4e38f,  -3.4e38f, 0x1p-126f, 16777215,      -16777215,  16777216, 8388607.5f,
      8388609, -4194303, 149,      -149,      0x1.fffffep-1f};
  std::vector<double> x, y;
  for (float a : corners) {
    for (float b : corners) x.push_back(a), y.push_back(b);
  }
  std::mt19937 generator(5);
  std::uniform_real_distribution<double> base(0, 8), exponent(-60, 60);
  for (int i = 0; i < 20000; ++i) {
    x.push_back(float_of(static_cast<uint32_t>(generator())));
    y.push_back(float_of(static_cast<uint32_t>(generator())));
    x.push_back(base(generator)), y.push_back(exponent(generator));
    x.push_back(1 + base(generator) * 1e-4), y.push_back(exponent(generator) * 1e4);
    x.push_back(-base(generator)), y.push_back(std::nearbyint(exponent(generator)));
  }
  Tensor a = Tensor::of(DType::Float32, {static_cast<int64_t>(x.size())}, x);
  Tensor b = Tensor::of(DType::Float32, a.sizes(), y), power(DType::Float32, a.sizes());
  const StepFacts facts = facts_of({node_of("Pow", {}, {&a, &b}, {&power})}, {&a, &b}, {&power});
  run_all_kernels("PointwiseGroup", facts, {&a, &b}, {&power}, [&] {
    for (int64_t i = 0; i < a.count(); ++i)
      ASSERT_LE(ulps(static_cast<float>(power.get(i)), std::pow(a.get(i), b.get(i))), 1)
          << a.get(i) << " to the " << b.get(i);
  });
}

TEST(ScalarMath, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(float_of(0x3f808000u)).bits, 0x3f80);  // a tie goes to even
  EXPECT_EQ(to_bfloat16(float_of(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(to_bfloat16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(kNaN).bits, 0x7fc0);
  EXPECT_EQ(to_bfloat16(3.4e38f).bits, 0x7f80);
}

TEST(ScalarMath, Float16KeepsEveryValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_float16(value).bits, half.bits);
    const int exponent = static_cast<int>((bits >> 10) & 31),
              mantissa = static_cast<int>(bits & 1023);
    if (exponent == 31) continue;
    const double exact =
        exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    ASSERT_EQ(std::fabs(value), exact);
  }
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);  // rounds up to infinity
  EXPECT_EQ(to_float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_float16(0x1p-25f).bits, 0);  // a tie with zero
  EXPECT_EQ(to_float16(0x1.8p-25f).bits, 1);
  EXPECT_TRUE(std::isnan(to_float(to_float16(kNaN))));
}

}  // namespace
}  // namespace ortmodule::testing
