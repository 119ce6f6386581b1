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
      {{1, 80, 6, 7}, {80, 1, 3, 3}, 80, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{2, 24, 9, 8}, {24, 1, 5, 2}, 24, {2, 1}, {2, 1, 2, 0}, {1, 2}},
      {{1, 11, 5, 6}, {11, 1, 3, 3}, 11, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 24, 7, 6}, {36, 12, 1, 3}, 2, {1, 1}, {0, 1, 0, 1}, {1, 1}},
      {{1, 56, 6, 9}, {20, 28, 3, 3}, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 144, 4, 5}, {6, 72, 3, 3}, 2, {1, 2}, {1, 1, 1, 1}, {1, 1}},
      {{1, 1100, 2, 3}, {40, 1100, 1, 1}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{2, 104, 5, 7}, {104, 1, 5, 5}, 104, {1, 1}, {2, 2, 2, 2}, {1, 1}},
      {{1, 64, 9, 9}, {64, 1, 3, 7}, 64, {2, 2}, {1, 3, 1, 3}, {2, 1}},
      {{2, 160, 5, 9}, {70, 160, 3, 3}, 1, {2, 1}, {1, 1, 1, 1}, {1, 1}},
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

Sizes channels_last_strides(const Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

/// The same elements with the channels of a pixel beside each other.
Tensor with_channels_last(const Tensor& t) {
  Tensor copy(t.dtype(), t.sizes(), channels_last_strides(t.sizes()));
  for (int64_t i = 0; i < t.count(); ++i) copy.set(i, t.get(i));
  return copy;
}

Attrs marked(const ConvCase& c) {
  Attrs attrs = attrs_of(c);
  attrs.set("channels_last", 1);
  return attrs;
}

// Also of a row-major image, which the kernel copies.
TEST(IntegerConvolutions, OfChannelsLastImagesAreExact) {
  for_each_conv([](const ConvCase& c, ConvOperands& o) {
    if (c.x.size() != 4) return;
    const std::vector<double> wanted = sums_of(c, o);
    Tensor x = with_channels_last(o.x),
           y(DType::Int32, o.y.sizes(), channels_last_strides(o.y.sizes()));
    for (Tensor* image : {&x, &o.x})
      run_kernel_named("conv_integer_pixels_cpu", "ConvInteger", marked(c),
                       {image, &o.w, &o.x_zero, &o.w_zero}, {&y},
                       [&] { ASSERT_EQ(y.values(), wanted); });
  });
}

std::vector<const KernelDef*> kernels_named(std::string_view name, std::string_view op) {
  std::vector<const KernelDef*> defs = kernels_of(op);
  std::erase_if(defs, [&](const KernelDef* def) { return def->name != name; });
  return defs;
}

/// Each copy of the kernels `packer` and `conv` on what it packed itself.
void check_packed(const ConvCase& c, ConvOperands& o, int64_t packed_bytes, const Attrs& packing,
                  const Attrs& attrs, std::string_view packer, std::string_view conv, Tensor& x,
                  Tensor& y) {
  Tensor packed(DType::Int8, {packed_bytes});
  Attrs of_packed = attrs;
  of_packed.set("w_dims", Dims(c.w.begin(), c.w.end()));
  of_packed.set("w_type", o.w.dtype());
  const std::vector<Tensor*> in{&x, &packed, &o.x_zero, &o.w_zero};
  const StepFacts pack =
      facts_of({node_of("PackIntegerConvWeights", packing, {&o.w}, {&packed})}, {&o.w}, {&packed});
  const StepFacts step = facts_of({node_of("ConvInteger", of_packed, in, {&y})}, in, {&y});
  const auto packers = kernels_named(packer, "PackIntegerConvWeights"),
             convs = kernels_named(conv, "ConvInteger");
  ASSERT_EQ(packers.size(), convs.size());
  const std::vector<double> wanted = sums_of(c, o);
  for (size_t i = 0; i < packers.size(); ++i) {
    if (packers[i]->unsupported(pack)) continue;
    run_kernel(*packers[i], pack, {&o.w}, {&packed}, two_threads);
    run_kernel(*convs[i], step, in, {&y}, two_threads);
    ASSERT_EQ(y.values(), wanted);
  }
}

// Copies pack weights in their own way, so each must read what it packed itself.
TEST(IntegerConvolutions, OfPackedWeightsAreExact) {
  for_each_conv([](const ConvCase& c, ConvOperands& o) {
    if (c.w[1] == 1) return;  // windows of single channels read weights as they are
    int64_t places = 1;
    for (size_t d = 2; d < c.w.size(); ++d) places *= c.w[d];
    const IntegerConvWeights weights{c.w[0], c.w[1], places};
    check_packed(c, o, weights.bytes(), {{"group", c.group}}, attrs_of(c),
                 "pack_integer_conv_weights_cpu", "conv_integer_cpu", o.x, o.y);
    if (c.x.size() != 4) return;
    Tensor x = with_channels_last(o.x),
           y(DType::Int32, o.y.sizes(), channels_last_strides(o.y.sizes()));
    check_packed(c, o, weights.matrix_bytes(c.group), {{"group", c.group}, {"channels_last", 1}},
                 marked(c), "pack_integer_conv_pixel_weights_cpu", "conv_integer_pixels_cpu", x, y);
  });
}

/// What a real number is in bytes, by the definition.
double quantized(float real, float scale, int zero, DType dtype) {
  const double low = dtype == DType::Int8 ? -128 : 0;
  return std::clamp(static_cast<double>(std::nearbyint(real / scale)) + zero, low, low + 255);
}

/// What makes bytes of sums: scales, zero points and a bias, of integers or real numbers.
struct Requantizing {
  Tensor x_scale, w_scale, bias, scale, zero;

  double of(double sum, int64_t output) const {
    const float factor =
        static_cast<float>(x_scale.get(0)) * static_cast<float>(w_scale.get(output));
    const double added = bias.get(output);
    const float real = bias.dtype() == DType::Int32
                           ? static_cast<float>(sum + added) * factor
                           : static_cast<float>(sum) * factor + static_cast<float>(added);
    return quantized(real, static_cast<float>(scale.get(0)), static_cast<int>(zero.get(0)),
                     zero.dtype());
  }
};

Requantizing requantizing_of(int64_t outputs, float y_scale, DType dtype, bool adds_integers) {
  const bool ties = y_scale == 0.5f;
  return {Tensor::of(DType::Float32, {}, {y_scale > 1e30f ? 1e36 : 0.25}),
          ties ? Tensor::of(DType::Float32, {outputs},
                            std::vector<double>(static_cast<size_t>(outputs), 0.125))
               : Tensor::random(DType::Float32, {outputs}, 5, 0.001, 0.01),
          adds_integers ? Tensor::random(DType::Int32, {outputs}, 6, -500, 500)
                        : Tensor::random(DType::Float32, {outputs}, 6),
          Tensor::of(DType::Float32, {}, {y_scale}), normal_bytes(dtype, {}, 7, 10)};
}

/// Biases by which one number of each output is next to the middle of two integers.
void add_to_middles(Requantizing& by, const std::vector<double>& sums, int64_t pixels) {
  const double scale = by.scale.get(0);
  for (int64_t o = 0; o < by.bias.count(); ++o) {
    const double sum = sums[static_cast<size_t>(o * pixels + o % pixels)];
    const double steps = static_cast<double>(o % 200 - 100) + 0.5 + (o % 17 - 8) * 0x1p-17;
    by.bias.set(o, steps * scale - sum * by.x_scale.get(0) * by.w_scale.get(o));
  }
}

void check_requantized(const ConvCase& c, float y_scale, DType dtype, bool last, bool integers) {
  ConvOperands o = operands_of(c, DType::UInt8, DType::Int8, 25);
  if (!integers)  // as quantized weights have it
    for (int64_t i = 0; i < o.w_zero.count(); ++i) o.w_zero.set(i, 0);
  const Sizes strides = last ? channels_last_strides(o.y.sizes()) : Sizes{};
  Tensor x = last ? with_channels_last(o.x) : o.x, y(dtype, o.y.sizes(), strides);
  Requantizing by = requantizing_of(c.w[0], y_scale, dtype, integers);
  std::vector<double> wanted = sums_of(c, o);
  const int64_t pixels = o.y.sizes()[2] * o.y.sizes()[3];
  if (!integers && y_scale > 1e-30f && y_scale < 1e30f) add_to_middles(by, wanted, pixels);
  for (size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = by.of(wanted[i], static_cast<int64_t>(i) / pixels % c.w[0]);
  const std::string name = last ? "conv_integer_to_float_pixels_cpu" : "conv_integer_to_float_cpu";
  run_kernel_named(
      name, "ConvIntegerToFloat", last ? marked(c) : attrs_of(c),
      {&x, &o.w, &by.x_scale, &by.w_scale, &o.x_zero, &o.w_zero, &by.bias, &by.scale, &by.zero},
      {&y}, [&] { ASSERT_EQ(y.values(), wanted); });
}

// Scales that put numbers in the middle of two integers, or near it, that have large biases, and
// those that have no reciprocal.
TEST(IntegerConvolutions, ResultsRoundAsQuotientsDo) {
  const std::vector<ConvCase> cases = {
      {{1, 8, 12, 31}, {21, 8, 1, 1}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{1, 112, 7, 9}, {112, 1, 3, 3}, 112, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 12, 6, 11}, {118, 12, 3, 3}, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {{1, 1100, 3, 5}, {40, 1100, 1, 1}, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}},
  };
  for (const ConvCase& c : cases)
    for (DType dtype : {DType::UInt8, DType::Int8})
      for (float y_scale : {0.5f, 3.0f, 0.1f, 1.7f, 0.004f, 1e-38f, 1e38f})
        for (bool last : {false, true})
          for (bool integers : {false, true}) {
            SCOPED_TRACE(str(dims_text({c.w.begin(), c.w.end()}), " ", name_of(dtype), " ", y_scale,
                             " ", last, " ", integers));
            check_requantized(c, y_scale, dtype, last, integers);
          }
}

}  // namespace
}  // namespace ortmodule::testing
