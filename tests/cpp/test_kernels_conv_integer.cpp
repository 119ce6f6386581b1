// Convolutions of integers of 8 bits against their definition: every copy of the kernels, with
// weights as they are and packed.
#include "base/integer_conv_weights.h"
#include "ops/infer_rules.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct ConvCase {
  Sizes x, w;
  int64_t group;
  std::vector<int64_t> strides, pads, dilations;  // pads: the begins, then the ends
};

const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> cases = {
      {{2, 3, 9, 11}, {5, 3, 3, 3}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 18, 5, 7}, {20, 18, 1, 1}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{1, 10, 8, 9}, {16, 5, 3, 2}, 2, {2, 3}, {2, 0, 1, 3}, {1, 1}},
      {{1, 6, 10, 40}, {6, 1, 3, 5}, 6, {1, 2}, {1, 2, 1, 2}, {1, 1}},
      {{2, 4, 7, 21}, {8, 1, 3, 3}, 4, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 2, 12, 12}, {4, 2, 3, 3}, 1, {3, 3}, {2, 3, 2, 3}, {2, 3}},
      {{1, 130, 4, 30}, {17, 130, 3, 3}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 3, 20}, {4, 3, 5}, 1, {1}, {2, 2}, {1}},
  };
  return cases;
}

/// Normally distributed around the middle of the type; the more of them exceed 16 bits together,
/// the larger the deviation. Of deviation 0, either end of the type.
Tensor normal_bytes(DType dtype, Sizes sizes, unsigned seed, double deviation) {
  const int low = dtype == DType::Int8 ? -128 : 0, high = low + 255;
  Tensor t(dtype, std::move(sizes));
  std::mt19937 draw(seed);
  std::normal_distribution<double> normal(low + 128, std::max(deviation, 1.0));
  for (int64_t i = 0; i < t.count(); ++i)
    t.set(i, deviation > 0 ? std::clamp(std::round(normal(draw)), double(low), double(high))
             : draw() % 4  ? high
                           : low);
  return t;
}

struct ConvOperands {
  Tensor x, w, x_zero, w_zero, y;
};

ConvOperands operands_of(const ConvCase& c, DType x_type, DType w_type, double deviation) {
  Sizes y{c.x[0], c.w[0]};
  for (size_t d = 0; d < c.strides.size(); ++d) {
    const int64_t reach = c.dilations[d] * (c.w[d + 2] - 1) + 1;
    const int64_t padded = c.x[d + 2] + c.pads[d] + c.pads[c.strides.size() + d];
    y.push_back((padded - reach) / c.strides[d] + 1);
  }
  return {normal_bytes(x_type, c.x, 1, 0), normal_bytes(w_type, c.w, 2, deviation),
          normal_bytes(x_type, {}, 3, 50), normal_bytes(w_type, {c.w[0]}, 4, 5),
          Tensor(DType::Int32, y)};
}

/// The sum of the window at `at` of output channel `o`, by the definition.
int64_t window_sum(const ConvCase& c, const std::vector<double>& x, const std::vector<double>& w,
                   double zx, double zw, int64_t image, int64_t o, const std::vector<int64_t>& at) {
  int64_t places = 1;
  for (size_t d = 2; d < c.w.size(); ++d) places *= c.w[d];
  const int64_t inner = c.w[1] * places, group = o / (c.w[0] / c.group);
  double sum = 0;
  for (int64_t i = 0; i < inner; ++i) {
    int64_t place = i % places, index = 0, size = 1;
    bool inside = true;
    for (size_t d = at.size(); d-- > 0;) {
      const int64_t k = place % c.w[d + 2];
      const int64_t p = at[d] * c.strides[d] + k * c.dilations[d] - c.pads[d];
      inside = inside && p >= 0 && p < c.x[d + 2];
      index += p * size;
      size *= c.x[d + 2];
      place /= c.w[d + 2];
    }
    if (!inside) continue;
    const int64_t channel = (image * c.x[1] + group * c.w[1] + i / places) * size;
    sum += (x[static_cast<size_t>(channel + index)] - zx) *
           (w[static_cast<size_t>(o * inner + i)] - zw);
  }
  return static_cast<int64_t>(sum);
}

std::vector<double> sums_of(const ConvCase& c, const ConvOperands& operands) {
  const std::vector<double> x = operands.x.values(), w = operands.w.values();
  const Sizes& y = operands.y.sizes();
  std::vector<double> sums;
  for (int64_t i = 0; i < operands.y.count(); ++i) {
    std::vector<int64_t> at(c.strides.size());
    int64_t rest = i;
    for (size_t d = at.size(); d-- > 0; rest /= y[d + 2]) at[d] = rest % y[d + 2];
    const int64_t o = rest % y[1];
    sums.push_back(static_cast<double>(
        window_sum(c, x, w, operands.x_zero.get(0), operands.w_zero.get(o), rest / y[1], o, at)));
  }
  return sums;
}

Attrs attrs_of(const ConvCase& c) {
  const auto dims = [](const std::vector<int64_t>& numbers) {
    return Dims(numbers.begin(), numbers.end());
  };
  return {{"strides", dims(c.strides)},
          {"pads", dims(c.pads)},
          {"dilations", dims(c.dilations)},
          {"group", c.group}};
}

template <class Body>
void for_each_conv(const Body& body) {
  for (const ConvCase& c : conv_cases())
    for (DType x_type : {DType::UInt8, DType::Int8})
      for (DType w_type : {DType::UInt8, DType::Int8})
        for (double deviation : {0.0, 25.0, 40.0}) {
          SCOPED_TRACE(str(dims_text({c.w.begin(), c.w.end()}), " ", name_of(x_type), " ",
                           name_of(w_type), " ", deviation));
          ConvOperands operands = operands_of(c, x_type, w_type, deviation);
          body(c, operands);
        }
}

TEST(IntegerConvolutions, AreExact) {
  for_each_conv([](const ConvCase& c, ConvOperands& o) {
    const std::vector<double> wanted = sums_of(c, o);
    run_kernel_named("conv_integer_cpu", "ConvInteger", attrs_of(c),
                     {&o.x, &o.w, &o.x_zero, &o.w_zero}, {&o.y},
                     [&] { ASSERT_EQ(o.y.values(), wanted); });
  });
}

// Copies pack weights in their own way, so each must read what it packed itself.
TEST(IntegerConvolutions, OfPackedWeightsAreExact) {
  for_each_conv([](const ConvCase& c, ConvOperands& o) {
    if (c.w[1] == 1) return;  // windows of single channels read weights as they are
    int64_t places = 1;
    for (size_t d = 2; d < c.w.size(); ++d) places *= c.w[d];
    Tensor packed(DType::Int8, {IntegerConvWeights{c.w[0], c.w[1], places}.bytes()});
    Attrs attrs = attrs_of(c);
    attrs.set("w_dims", Dims(c.w.begin(), c.w.end()));
    attrs.set("w_type", o.w.dtype());
    const std::vector<Tensor*> in{&o.x, &packed, &o.x_zero, &o.w_zero};
    const StepFacts packing =
        facts_of({node_of("PackIntegerConvWeights", {}, {&o.w}, {&packed})}, {&o.w}, {&packed});
    const StepFacts conv = facts_of({node_of("ConvInteger", attrs, in, {&o.y})}, in, {&o.y});
    const auto packers = kernels_of("PackIntegerConvWeights"), convs = kernels_of("ConvInteger");
    ASSERT_EQ(packers.size(), convs.size());
    const std::vector<double> wanted = sums_of(c, o);
    for (size_t i = 0; i < packers.size(); ++i) {
      if (packers[i]->unsupported(packing)) continue;
      run_kernel(*packers[i], packing, {&o.w}, {&packed}, two_threads);
      run_kernel(*convs[i], conv, in, {&o.y}, two_threads);
      ASSERT_EQ(o.y.values(), wanted);
    }
  });
}

}  // namespace
}  // namespace ortmodule::testing
