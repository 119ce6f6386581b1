// The pointwise group: each op against a formula in double, layouts, types, grouping.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

using Formula = std::function<double(const std::vector<double>&)>;

// Operand of a broadcast: the element of t that output position `position` of `sizes` reads.
double broadcast_get(const Tensor& t, const Sizes& sizes, int64_t position) {
  int64_t offset = 0, stride = 1;
  size_t d = sizes.size();
  for (size_t k = t.sizes().size(); k-- > 0;) {
    const int64_t coordinate = position % sizes[--d];
    position /= sizes[d];
    offset += t.sizes()[k] == 1 ? 0 : coordinate * stride;
    stride *= t.sizes()[k];
  }
  return t.get(offset);
}

std::vector<double> reference(const Formula& f, const std::vector<Tensor*>& in,
                              const Sizes& sizes) {
  std::vector<double> result;
  for (int64_t i = 0; i < element_count(sizes); ++i) {
    std::vector<double> operands;
    for (Tensor* t : in) operands.push_back(broadcast_get(*t, sizes, i));
    result.push_back(f(operands));
  }
  return result;
}

void check_op(const std::string& op, const Attrs& attrs, const std::vector<Tensor*>& in, Tensor out,
              const Formula& f, double ulps) {
  const std::vector<double> expected = reference(f, in, out.sizes());
  run_group({node_of(op, attrs, in, {&out})}, in, {&out},
            [&] { expect_close(out, expected, ulps, 0.1, op + str(" ", name_of(out.dtype()))); });
}

struct OpCase {
  std::string op;
  int operands;
  Formula f;
  Attrs attrs = {};
  double ulps = 8;
  double low = -3, high = 3;
};

double phi(double x) { return 0.5 * (1 + std::erf(x / std::sqrt(2.0))); }
double sigma(double x) { return 1 / (1 + std::exp(-x)); }
double tanh_gelu_inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

std::vector<OpCase> float_cases() {
  using V = std::vector<double>;
  return {
      {"Add", 2, [](const V& v) { return v[0] + v[1]; }},
      {"Sub", 2, [](const V& v) { return v[0] - v[1]; }},
      {"Mul", 2, [](const V& v) { return v[0] * v[1]; }},
      {"Div", 2, [](const V& v) { return v[0] / v[1]; }},
      {"Max", 2, [](const V& v) { return std::max(v[0], v[1]); }},
      {"Min", 2, [](const V& v) { return std::min(v[0], v[1]); }},
      {"Pow", 2, [](const V& v) { return std::pow(v[0], v[1]); }, {}, 8, 0.1, 3},
      {"Atan2", 2, [](const V& v) { return std::atan2(v[0], v[1]); }},
      {"Mod", 2, [](const V& v) { return v[0] - std::floor(v[0] / v[1]) * v[1]; }, {}, 3e3},
      {"FloorDiv", 2, [](const V& v) { return std::floor(v[0] / v[1]); }},
      {"Neg", 1, [](const V& v) { return -v[0]; }},
      {"Abs", 1, [](const V& v) { return std::fabs(v[0]); }},
      {"Sign", 1, [](const V& v) { return v[0] > 0   ? 1.0
                                          : v[0] < 0 ? -1.0
                                                     : 0.0; }},
      {"Exp", 1, [](const V& v) { return std::exp(v[0]); }},
      {"Log", 1, [](const V& v) { return std::log(v[0]); }, {}, 8, 0.01, 5},
      {"Log1p", 1, [](const V& v) { return std::log1p(v[0]); }, {}, 8, 0, 5},
      {"Expm1", 1, [](const V& v) { return std::expm1(v[0]); }},
      {"Sqrt", 1, [](const V& v) { return std::sqrt(v[0]); }, {}, 8, 0, 5},
      {"Rsqrt", 1, [](const V& v) { return 1 / std::sqrt(v[0]); }, {}, 8, 0.1, 5},
      {"Reciprocal", 1, [](const V& v) { return 1 / v[0]; }},
      {"Sin", 1, [](const V& v) { return std::sin(v[0]); }},
      {"Cos", 1, [](const V& v) { return std::cos(v[0]); }, {}, 64},
      {"Tanh", 1, [](const V& v) { return std::tanh(v[0]); }},
      {"Erf", 1, [](const V& v) { return std::erf(v[0]); }},
      {"Sigmoid", 1, [](const V& v) { return sigma(v[0]); }},
      {"Relu", 1, [](const V& v) { return std::max(v[0], 0.0); }},
      {"Silu", 1, [](const V& v) { return v[0] * sigma(v[0]); }},
      {"Gelu", 1, [](const V& v) { return v[0] * phi(v[0]); }, {}, 64},
      {"Gelu",
       1,
       [](const V& v) { return v[0] * 0.5 * (1 + std::tanh(tanh_gelu_inner(v[0]))); },
       {{"approximate", std::string("tanh")}},
       64},
      {"Softplus",
       1,
       [](const V& v) { return std::log1p(std::exp(2 * v[0])) / 2; },
       {{"beta", 2.0}, {"threshold", 20.0}}},
      {"LogSigmoid", 1, [](const V& v) { return -std::log1p(std::exp(-v[0])); }},
      {"Mish", 1, [](const V& v) { return v[0] * std::tanh(std::log1p(std::exp(v[0]))); }, {}, 16},
      {"LeakyRelu", 1, [](const V& v) { return v[0] > 0 ? v[0] : 0.2 * v[0]; }, {{"alpha", 0.2}}},
      {"Elu",
       1,
       [](const V& v) { return v[0] > 0 ? v[0] : 1.5 * std::expm1(v[0]); },
       {{"alpha", 1.5}}},
      {"Clip",
       1,
       [](const V& v) { return std::min(std::max(v[0], -0.5), 0.75); },
       {{"min", -0.5}, {"max", 0.75}}},
      {"Clip", 1, [](const V& v) { return std::max(v[0], -0.5); }, {{"min", -0.5}}},
      {"HardSigmoid",
       1,
       [](const V& v) { return std::clamp(v[0] + 3, 0.0, 6.0) / 6; },
       {},
       8,
       -5,
       5},
      {"HardSwish",
       1,
       [](const V& v) { return v[0] * std::clamp(v[0] + 3, 0.0, 6.0) / 6; },
       {},
       64,
       -5,
       5},
      {"Floor", 1, [](const V& v) { return std::floor(v[0]); }},
      {"Ceil", 1, [](const V& v) { return std::ceil(v[0]); }},
      {"Round", 1, [](const V& v) { return std::nearbyint(v[0]); }},
      {"GeluGrad",
       2,
       [](const V& v) {
         return v[0] * (phi(v[1]) + v[1] * std::exp(-v[1] * v[1] / 2) / std::sqrt(2 * M_PI));
       },
       {},
       128},
      {"GeluGrad",
       2,
       [](const V& v) {
         const double x = v[1], t = std::tanh(tanh_gelu_inner(x));
         return v[0] * (0.5 * (1 + t) +
                        0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x));
       },
       {{"approximate", std::string("tanh")}},
       256},
      {"ReluGrad", 2, [](const V& v) { return v[1] > 0 ? v[0] : 0; }},
      {"TanhGrad", 2, [](const V& v) { return v[0] * (1 - v[1] * v[1]); }, {}, 64, -1, 1},
      {"SigmoidGrad", 2, [](const V& v) { return v[0] * v[1] * (1 - v[1]); }, {}, 64, 0, 1},
      {"SiluGrad",
       2,
       [](const V& v) { return v[0] * sigma(v[1]) * (1 + v[1] * (1 - sigma(v[1]))); },
       {},
       128},
      {"LogSigmoidGrad", 2, [](const V& v) { return v[0] * sigma(-v[1]); }, {}, 16},
      {"MishGrad",
       2,
       [](const V& v) {
         const double x = v[1], t = std::tanh(std::log1p(std::exp(x)));
         return v[0] * (t + x * sigma(x) * (1 - t * t));
       },
       {},
       128},
      {"SoftplusGrad", 2, [](const V& v) { return v[0] * sigma(2 * v[1]); }, {{"beta", 2.0}}, 16},
      {"LeakyReluGrad",
       2,
       [](const V& v) { return v[1] > 0 ? v[0] : 0.2 * v[0]; },
       {{"alpha", 0.2}}},
      {"EluGrad",
       2,
       [](const V& v) { return v[1] > 0 ? v[0] : 1.5 * v[0] * std::exp(v[1]); },
       {{"alpha", 1.5}}},
      {"ClipGrad",
       2,
       [](const V& v) { return v[1] >= -0.5 && v[1] <= 0.75 ? v[0] : 0; },
       {{"min", -0.5}, {"max", 0.75}}},
  };
}

TEST(PointwiseGroup, ComputesEveryFloatOp) {
  for (const OpCase& c : float_cases()) {
    for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
      Tensor a = Tensor::random(dtype, {7, 11}, 1, c.low, c.high);
      Tensor b = Tensor::random(dtype, {7, 11}, 2, c.low, c.high);
      const bool rounds_jumps = c.op == "Mod" || c.op == "FloorDiv";
      if (rounds_jumps && dtype != DType::Float64) continue;  // exact below, by integers
      std::vector<Tensor*> in = {&a};
      if (c.operands == 2) in.push_back(&b);
      check_op(c.op, c.attrs, in, Tensor(dtype, {7, 11}), c.f, c.ulps);
    }
  }
}

// Denormal, absent and infinite results; those of CUDA are compared bit by bit.
TEST(PointwiseGroup, RaisesToAnyExponent) {
  Tensor x = Tensor::random(DType::Float32, {5003}, 41, -108, 92), y(DType::Float32, {5003});
  const std::vector<double> ends{NAN,  INFINITY, -INFINITY, -1e30, 1e30,
                                 -0.0, -103.9,   -104.1,    88.72};
  for (size_t i = 0; i < ends.size(); ++i) x.set(static_cast<int64_t>(17 * i), ends[i]);
  run_group({node_of("Exp", {}, {&x}, {&y})}, {&x}, {&y}, [&] {
    for (int64_t i = 0; i < x.count(); ++i) {
      const double wanted = std::exp(x.get(i)), result = y.get(i);
      if (std::isnan(wanted) || wanted > std::numeric_limits<float>::max())
        ASSERT_EQ(std::isnan(result) ? 0 : result, std::isnan(wanted) ? 0 : INFINITY) << x.get(i);
      else
        ASSERT_NEAR(result, wanted, wanted * 3e-7 + 1.5e-45) << x.get(i);
    }
  });
}

TEST(PointwiseGroup, BroadcastsAnyLayout) {
  const Formula add = [](const std::vector<double>& v) { return v[0] + v[1]; };
  const std::vector<std::pair<Sizes, Sizes>> shapes = {{{}, {}},
                                                       {{1}, {1}},
                                                       {{2049}, {2049}},
                                                       {{13, 7}, {7}},
                                                       {{300, 768}, {768}},
                                                       {{5, 3000}, {3000}},
                                                       {{5, 3000}, {5, 1}},
                                                       {{4, 3, 5}, {3, 1}},
                                                       {{4, 3, 5}, {4, 1, 1}},
                                                       {{2, 3, 4, 5, 6}, {3, 1, 5, 1}},
                                                       {{0, 3}, {3}},
                                                       {{1000, 3}, {3}},
                                                       {{6, 700}, {1, 1}},
                                                       {{17, 129}, {17, 129}},
                                                       {{3, 2, 1500}, {2, 1}}};
  for (const auto& [sizes, other] : shapes) {
    for (DType dtype : {DType::Float32, DType::BFloat16, DType::Int32}) {
      Tensor a = Tensor::random(dtype, sizes, 3, -50, 50),
             b = Tensor::random(dtype, other, 4, -50, 50);
      check_op("Add", {}, {&a, &b}, Tensor(dtype, sizes), add, 1);
    }
  }
}

TEST(PointwiseGroup, ReadsAndWritesStrides) {
  const Formula sub = [](const std::vector<double>& v) { return v[0] - v[1]; };
  for (int64_t width : {5, 1031}) {
    // A transposed, a sliced and a plain operand; outputs in three layouts.
    const Sizes sizes{6, width};
    Tensor transposed = Tensor::random(DType::Float32, sizes, 5, -2, 2, {1, 6});
    Tensor sliced = Tensor::random(DType::Float32, sizes, 6, -2, 2, {3 * width, 2});
    Tensor cut = Tensor::random(DType::Float32, sizes, 7, -2, 2, {width + 9, 1});
    Tensor expanded = Tensor::random(DType::Float32, {6, 1}, 8, -2, 2);
    for (Tensor* a : {&transposed, &sliced, &cut, &expanded})
      for (Tensor* b : {&transposed, &sliced, &cut})
        for (const Sizes& strides : {Sizes{width, 1}, Sizes{1, 6}, Sizes{width + 3, 1}})
          check_op("Sub", {}, {a, b}, Tensor(DType::Float32, sizes, strides), sub, 1);
  }
}

TEST(PointwiseGroup, FollowsPermutedMemory) {
  // channels_last on both sides: one run over memory.
  const Sizes sizes{2, 3, 4, 5}, strides{60, 1, 15, 3};
  Tensor a = Tensor::random(DType::Float32, sizes, 9, -2, 2, strides);
  check_op(
      "Neg", {}, {&a}, Tensor(DType::Float32, sizes, strides),
      [](const std::vector<double>& v) { return -v[0]; }, 0);
}

TEST(PointwiseGroup, PropagatesNaN) {
  const double nan = std::nan(""), inf = INFINITY;
  Tensor a = Tensor::of(DType::Float32, {5}, {nan, 1, nan, inf, -inf});
  Tensor b = Tensor::of(DType::Float32, {5}, {1, nan, nan, 2, 2});
  const std::vector<Tensor*> in{&a, &b};
  auto propagating = [](auto pick) {
    return [pick](const std::vector<double>& v) {
      return std::isnan(v[0]) || std::isnan(v[1]) ? std::nan("") : pick(v[0], v[1]);
    };
  };
  check_op("Max", {}, in, Tensor(DType::Float32, {5}),
           propagating([](double x, double y) { return std::max(x, y); }), 0);
  check_op("Min", {}, in, Tensor(DType::Float32, {5}),
           propagating([](double x, double y) { return std::min(x, y); }), 0);
  check_op(
      "Relu", {}, {&a}, Tensor(DType::Float32, {5}),
      [](const std::vector<double>& v) { return std::isnan(v[0]) ? v[0] : std::max(v[0], 0.0); },
      0);
  check_op(
      "IsNaN", {}, {&a}, Tensor(DType::Bool, {5}),
      [](const std::vector<double>& v) { return std::isnan(v[0]); }, 0);
  check_op(
      "IsInf", {}, {&a}, Tensor(DType::Bool, {5}),
      [](const std::vector<double>& v) { return std::isinf(v[0]); }, 0);
}

TEST(PointwiseGroup, ComputesIntegersLikePython) {
  Tensor a = Tensor::of(DType::Int64, {6}, {7, -7, 7, -7, 6, -1});
  Tensor b = Tensor::of(DType::Int64, {6}, {2, 2, -2, -2, 3, -1});
  const std::vector<Tensor*> in{&a, &b};
  auto floor_div = [](const std::vector<double>& v) { return std::floor(v[0] / v[1]); };
  check_op("FloorDiv", {}, in, Tensor(DType::Int64, {6}), floor_div, 0);
  check_op(
      "Mod", {}, in, Tensor(DType::Int64, {6}),
      [&](const std::vector<double>& v) { return v[0] - floor_div(v) * v[1]; }, 0);
  check_op(
      "Mod", {{"fmod", 1}}, in, Tensor(DType::Int64, {6}),
      [&](const std::vector<double>& v) { return std::fmod(v[0], v[1]); }, 0);
  auto trunc_div = [](const std::vector<double>& v) { return std::trunc(v[0] / v[1]); };
  check_op("Div", {}, in, Tensor(DType::Int64, {6}), trunc_div, 0);
  Tensor least = Tensor::of(DType::Int64, {1}, {-0x1p63}),
         minus = Tensor::of(DType::Int64, {1}, {-1});
  check_op(
      "Div", {}, {&least, &minus}, Tensor(DType::Int64, {1}),
      [](const std::vector<double>& v) { return v[0]; }, 0);
  Tensor byte = Tensor::of(DType::Int8, {1}, {-128}), one = Tensor::of(DType::Int8, {1}, {-1});
  check_op(
      "Div", {}, {&byte, &one}, Tensor(DType::Int8, {1}),
      [](const std::vector<double>& v) { return v[0]; }, 0);
  Tensor small = Tensor::of(DType::UInt8, {2}, {200, 100});
  check_op(
      "Add", {}, {&small, &small}, Tensor(DType::UInt8, {2}),
      [](const std::vector<double>& v) { return std::fmod(v[0] + v[1], 256); }, 0);
  Tensor zero = Tensor::of(DType::Int32, {2}, {1, 0});
  Tensor out(DType::Int32, {2});
  for (const NodeFacts& node :
       {node_of("FloorDiv", {}, {&zero, &zero}, {&out}), node_of("Div", {}, {&zero, &zero}, {&out}),
        node_of("Mod", {}, {&zero, &zero}, {&out}),
        node_of("Mod", {{"fmod", 1}}, {&zero, &zero}, {&out})}) {
    const StepFacts facts = facts_of({node}, {&zero, &zero}, {&out});
    EXPECT_THROW(run_kernel(*kernels_of("PointwiseGroup")[0], facts, {&zero, &zero}, {&out}),
                 Error);
  }
}

TEST(PointwiseGroup, ComparesAndChooses) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::Int64, DType::Int8, DType::Bool}) {
    Tensor a = Tensor::random(dtype, {3, 700}, 10), b = Tensor::random(dtype, {3, 700}, 11);
    for (int64_t i = 0; i < a.count(); i += 5) a.set(i, b.get(i));
    const std::vector<Tensor*> in{&a, &b};
    Tensor mask(DType::Bool, {3, 700});
    using V = std::vector<double>;
    check_op(
        "Equal", {}, in, mask, [](const V& v) { return v[0] == v[1]; }, 0);
    check_op(
        "Less", {}, in, mask, [](const V& v) { return v[0] < v[1]; }, 0);
    check_op(
        "LessOrEqual", {}, in, mask, [](const V& v) { return v[0] <= v[1]; }, 0);
    check_op(
        "Greater", {}, in, mask, [](const V& v) { return v[0] > v[1]; }, 0);
    check_op(
        "GreaterOrEqual", {}, in, mask, [](const V& v) { return v[0] >= v[1]; }, 0);
    Tensor condition = Tensor::random(DType::Bool, {700}, 12);
    for (int64_t i = 0; i < 700; i += 3) condition.set(i, 0);
    check_op(
        "Where", {}, {&condition, &a, &b}, Tensor(dtype, {3, 700}),
        [](const V& v) { return v[0] != 0 ? v[1] : v[2]; }, 0);
  }
}

TEST(PointwiseGroup, CastsBetweenAllRealTypes) {
  const std::vector<DType> types = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16,
                                    DType::Int64,   DType::Int32,   DType::Int16,   DType::Int8,
                                    DType::UInt8,   DType::Bool};
  for (DType from : types) {
    for (DType to : types) {
      Tensor x = Tensor::random(from, {513}, 13, 0, 100);
      x.set(0, 0);
      std::vector<double> expected;
      for (double value : x.values()) {
        if (to == DType::Bool)
          value = value != 0;
        else if (!is_floating(to))
          value = std::trunc(value);
        Tensor rounded = Tensor::of(to, {1}, {value});
        expected.push_back(rounded.get(0));
      }
      Tensor y(to, {513});
      run_group({node_of("Cast", {{"to", to}}, {&x}, {&y})}, {&x}, {&y},
                [&] { expect_close(y, expected, 0, 0, str(name_of(from), " to ", name_of(to))); });
    }
  }
}

// Dense memory is converted in one loop, other memory tile by tile.
TEST(PointwiseGroup, CastsDenseMemoryAsAnyOther) {
  for (DType from :
       {DType::Float32, DType::Float64, DType::Float16, DType::Int64, DType::UInt8, DType::Bool})
    for (DType to : {DType::Float32, DType::BFloat16, DType::Int64, DType::Int32, DType::Int16,
                     DType::UInt8, DType::Bool}) {
      Tensor dense = Tensor::random(from, {3000, 2}, 5, -2e5, 2e5);
      for (int64_t i = 0; is_floating(from) && i < dense.count(); i += 37)
        dense.set(i, i % 2 ? std::nan("") : 3e9);
      Tensor apart(from, {3000, 2}, {5, 2});
      for (int64_t i = 0; i < dense.count(); ++i) apart.set(i, dense.get(i));
      Tensor expected(to, {3000, 2}), y(to, {3000, 2});
      run_group({node_of("Cast", {{"to", to}}, {&apart}, {&y})}, {&apart}, {&y},
                [&] { expected = y; });
      run_group({node_of("Cast", {{"to", to}}, {&dense}, {&y})}, {&dense}, {&y},
                [&] { EXPECT_TRUE(y.same_bits(expected)) << name_of(from) << name_of(to); });
    }
}

TEST(PointwiseGroup, ShiftsBits) {
  for (DType dtype : {DType::Int64, DType::Int32, DType::Int8, DType::UInt8}) {
    const double bits = 8.0 * static_cast<double>(size_of(dtype));
    Tensor x = Tensor::random(dtype, {40, 3}, 2, dtype == DType::UInt8 ? 0 : -100, 100);
    Tensor by = Tensor::of(dtype, {40, 1}, std::vector<double>(40, 0)), y(dtype, {40, 3});
    for (int64_t i = 0; i < 40; ++i) by.set(i, static_cast<double>(i % 12));
    const auto left = [=](const std::vector<double>& v) {
      Tensor wrapped(dtype, {1});
      wrapped.set(0, v[1] < bits ? std::fmod(v[0] * std::exp2(v[1]), std::exp2(bits)) : 0);
      return wrapped.get(0);
    };
    check_op("BitShiftLeft", {}, {&x, &by}, y, left, 0);
    check_op(
        "BitShiftRight", {}, {&x, &by}, y,
        [](const std::vector<double>& v) { return std::floor(v[0] / std::exp2(v[1])); }, 0);
    Tensor far = Tensor::of(dtype, {1}, {100});
    check_op(
        "BitShiftLeft", {}, {&x, &far}, y, [](const std::vector<double>&) { return 0.0; }, 0);
    check_op(
        "BitShiftRight", {}, {&x, &far}, y,
        [](const std::vector<double>& v) { return v[0] < 0 ? -1.0 : 0.0; }, 0);
  }
}

// Rows of many tiles, whose operand by row is loaded once.
TEST(PointwiseGroup, BroadcastsOneElementAlongLongRows) {
  Tensor x = Tensor::random(DType::Float32, {2, 3, 9000}, 3), y(DType::Float32, {2, 3, 9000});
  Tensor by_row = Tensor::random(DType::Float32, {3, 1}, 4);
  Tensor by_image = Tensor::random(DType::Float32, {2, 1, 1}, 5);
  check_op(
      "Mul", {}, {&x, &by_row}, y, [](const std::vector<double>& v) { return v[0] * v[1]; }, 1);
  check_op(
      "Sub", {}, {&x, &by_image}, y, [](const std::vector<double>& v) { return v[0] - v[1]; }, 1);
}

TEST(PointwiseGroup, CastsFloatsOutOfRangeThroughInt32) {
  // What x86's conversions give of them, of which PyTorch keeps the lowest bits.
  const double least = std::numeric_limits<int32_t>::min();
  const std::vector<double> values = {3e9, -3e9, INFINITY, -INFINITY, NAN, 70000.5, -300.7, 1e20};
  const std::vector<double> as_int32 = {least, least, least, least, least, 70000, -300, least};
  for (DType from : {DType::Float32, DType::Float64}) {
    for (DType to : {DType::Int32, DType::Int16, DType::Int8, DType::UInt8}) {
      std::vector<double> repeated, expected;  // whole vectors and the rest of one
      for (size_t i = 0; i < 9 * values.size(); ++i) {
        repeated.push_back(values[i % values.size()]);
        const auto bits = static_cast<int32_t>(as_int32[i % values.size()]);
        expected.push_back(to == DType::Int32   ? bits
                           : to == DType::Int16 ? static_cast<int16_t>(bits)
                           : to == DType::Int8  ? static_cast<int8_t>(bits)
                                                : static_cast<uint8_t>(bits));
      }
      // Bytes without sign go by way of an int64, which holds 3e9, a multiple of 256.
      Tensor x = Tensor::of(from, {72}, repeated), y(to, {72});
      run_group({node_of("Cast", {{"to", to}}, {&x}, {&y})}, {&x}, {&y},
                [&] { expect_close(y, expected, 0, 0, str(name_of(from), " to ", name_of(to))); });
    }
  }
}

TEST(PointwiseGroup, TakesLiterals) {
  Tensor x = Tensor::random(DType::BFloat16, {2000}, 14, 0.5, 2), y(DType::BFloat16, {2000});
  NodeFacts node = node_of("Sub", {}, {&x, &x}, {&y});
  // 0.1 is no bfloat16: kept exact until the result is rounded.
  node.inputs = {{OperandRef::Kind::Literal, 0, 0.1}, {OperandRef::Kind::Input, 0}};
  std::vector<double> expected;
  for (double v : x.values())
    expected.push_back(to_float(to_bfloat16(0.1f - static_cast<float>(v))));
  run_group({node}, {&x}, {&y}, [&] { expect_close(y, expected, 0, 0, "literal"); });
  for (double exponent : {2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 2.5}) {
    NodeFacts pow = node_of("Pow", {}, {&x, &x}, {&y});
    pow.inputs[1] = {OperandRef::Kind::Literal, 0, exponent};
    expected.clear();
    for (double v : x.values()) expected.push_back(std::pow(v, exponent));
    run_group({pow}, {&x}, {&y}, [&] { expect_close(y, expected, 2, 0, "Pow"); });
  }
}

// --- groups --------------------------------------------------------------------------------------
OperandRef reg(int node) { return {OperandRef::Kind::Register, node}; }
OperandRef input(int index) { return {OperandRef::Kind::Input, index}; }

struct Chain {
  DType dtype;
  Tensor x, bias, residual, h, dropped, y, mask;
  std::vector<NodeFacts> nodes;

  // y = Dropout(Gelu(x + bias)) + residual, mask = y > x; everything is also an output.
  explicit Chain(DType type, const Sizes& sizes)
      : dtype(type),
        x(Tensor::random(type, sizes, 15)),
        bias(Tensor::random(type, {sizes.back()}, 16)),
        residual(Tensor::random(type, sizes, 17)),
        h(type, sizes),
        dropped(type, sizes),
        y(type, sizes),
        mask(DType::Bool, sizes) {
    auto add = [&](std::string op, std::vector<OperandRef> in, DType out, int output,
                   Attrs attrs = {}) {
      NodeFacts node;
      node.op = std::move(op);
      node.attrs = std::move(attrs);
      node.input_dtypes.assign(in.size(), type);
      node.inputs = std::move(in);
      node.outputs = {output};
      node.output_dtypes = {out};
      node.output_sizes = {sizes};
      nodes.push_back(std::move(node));
    };
    add("Add", {input(0), input(1)}, type, 0);
    add("Gelu", {reg(0)}, type, -1);
    add("Dropout", {reg(1)}, type, 1, {{"ratio", 0.3}, {"rng", 7}});
    add("Add", {reg(2), input(2)}, type, 2);
    add("Greater", {reg(3), input(0)}, DType::Bool, 3);
  }
  std::vector<Tensor*> in() { return {&x, &bias, &residual}; }
  std::vector<Tensor*> out() { return {&h, &dropped, &y, &mask}; }
};

Tensor run_single(const NodeFacts& like, std::vector<Tensor*> in, DType out_type,
                  const KernelDef& def) {
  Tensor out(out_type, in[0]->sizes());
  NodeFacts node = node_of(like.op, like.attrs, in, {&out});
  run_kernel(def, facts_of({node}, in, {&out}), in, {&out});
  return out;
}

TEST(PointwiseGroup, GivesTheBitsOfItsNodes) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
    for (const Sizes& sizes : {Sizes{3, 5}, Sizes{100, 96}, Sizes{4, 2500}}) {
      for (const KernelDef* def : kernels_of("PointwiseGroup")) {
        Chain chain(dtype, sizes);
        run_kernel(*def, facts_of(chain.nodes, chain.in(), chain.out()), chain.in(), chain.out());
        Tensor h = run_single(chain.nodes[0], {&chain.x, &chain.bias}, dtype, *def);
        Tensor g = run_single(chain.nodes[1], {&h}, dtype, *def);
        Tensor d = run_single(chain.nodes[2], {&g}, dtype, *def);
        Tensor y = run_single(chain.nodes[3], {&d, &chain.residual}, dtype, *def);
        Tensor m = run_single(chain.nodes[4], {&y, &chain.x}, DType::Bool, *def);
        EXPECT_TRUE(h.same_bits(chain.h));
        EXPECT_TRUE(d.same_bits(chain.dropped));
        EXPECT_TRUE(y.same_bits(chain.y));
        EXPECT_TRUE(m.same_bits(chain.mask));
      }
    }
  }
}

TEST(PointwiseGroup, MayOverwriteAnyOperand) {
  for (DType dtype : {DType::Float32, DType::BFloat16}) {
    for (const KernelDef* def : kernels_of("PointwiseGroup")) {
      for (int output = 0; output < 3; ++output) {
        for (int operand : {0, 2}) {
          Chain apart(dtype, {40, 300});
          run_kernel(*def, facts_of(apart.nodes, apart.in(), apart.out()), apart.in(), apart.out());
          Chain chain(dtype, {40, 300});
          std::vector<Tensor*> out = chain.out();
          out[static_cast<size_t>(output)] = chain.in()[static_cast<size_t>(operand)];
          run_kernel(*def, facts_of(chain.nodes, chain.in(), out), chain.in(), out);
          for (size_t i = 0; i < out.size(); ++i)
            EXPECT_TRUE(out[i]->same_bits(*apart.out()[i]))
                << "output " << output << " in operand " << operand << ", differs in " << i;
        }
      }
    }
  }
}

TEST(PointwiseGroup, TakesLongGroups) {
  // 60 nodes, every result alive to the end.
  Tensor x = Tensor::random(DType::Float32, {5000}, 18), y(DType::Float32, {5000});
  std::vector<NodeFacts> nodes;
  auto add = [&](OperandRef a, OperandRef b, int output) {
    NodeFacts node = node_of("Add", {}, {&x, &x}, {&y});
    node.inputs = {a, b};
    node.outputs = {output};
    nodes.push_back(node);
  };
  add(input(0), {OperandRef::Kind::Literal, 0, 1.0}, -1);
  for (int i = 1; i < 30; ++i) add(reg(i - 1), {OperandRef::Kind::Literal, 0, 1.0}, -1);
  for (int i = 0; i < 30; ++i) add(reg(29 + i), reg(29 - i), i == 29 ? 0 : -1);
  std::vector<double> expected;
  for (double v : x.values()) {
    std::vector<float> values{static_cast<float>(v) + 1.0f};
    for (int i = 1; i < 30; ++i) values.push_back(values.back() + 1.0f);
    for (int i = 0; i < 30; ++i)
      values.push_back(values.back() + values[static_cast<size_t>(29 - i)]);
    expected.push_back(values.back());
  }
  run_group(nodes, {&x}, {&y}, [&] { expect_close(y, expected, 0, 0, "long group"); });
}

TEST(PointwiseGroup, NamesWhatItLacks) {
  Tensor x(DType::Float32, {3}), y(DType::Float32, {3});
  std::string why;
  EXPECT_EQ(select_kernel("PointwiseGroup", Device::CPU,
                          facts_of({node_of("Frobnicate", {}, {&x}, {&y})}, {&x}, {&y}), &why),
            nullptr);
  EXPECT_EQ(why,
            "no kernel for PointwiseGroup on CPU:\n"
            "  - pointwise_group_cpu: Frobnicate of f32 is not a pointwise kernel");
}

}  // namespace
}  // namespace ortmodule::testing
