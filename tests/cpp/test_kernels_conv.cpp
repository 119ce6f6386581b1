// Conv and ConvTranspose of our own against their definition in double.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct ConvCase {
  int64_t images, channels, outputs, groups;
  Sizes in, kernel, strides, pads, dilations;  // pads: begins, then ends
  Sizes more = {};                             // output_padding
};

Attrs attrs_of(const ConvCase& c) {
  const auto dims = [](const Sizes& sizes) { return Dims(sizes.begin(), sizes.end()); };
  Attrs attrs{{"strides", dims(c.strides)},
              {"pads", dims(c.pads)},
              {"dilations", dims(c.dilations)},
              {"group", c.groups}};
  if (!c.more.empty()) attrs.set("output_padding", dims(c.more));
  return attrs;
}

int64_t product(const Sizes& sizes) { return element_count(sizes); }

Sizes coordinates(int64_t position, const Sizes& sizes) {
  Sizes at(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    at[d] = position % sizes[d];
    position /= sizes[d];
  }
  return at;
}

Sizes out_sizes(const ConvCase& c) {
  Sizes out;
  const size_t n = c.in.size();
  for (size_t d = 0; d < n; ++d) {
    const int64_t reach = c.dilations[d] * (c.kernel[d] - 1) + 1, pads = c.pads[d] + c.pads[n + d];
    out.push_back(c.more.empty() ? (c.in[d] + pads - reach) / c.strides[d] + 1
                                 : (c.in[d] - 1) * c.strides[d] - pads + reach + c.more[d]);
  }
  return out;
}

/// The position of strides * from + dilations * place - pads in `sizes`, or -1 if it is outside.
int64_t position_of(const ConvCase& c, const Sizes& from, const Sizes& place, const Sizes& sizes) {
  int64_t position = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t at = from[d] * c.strides[d] + place[d] * c.dilations[d] - c.pads[d];
    if (at < 0 || at >= sizes[d]) return -1;
    position = position * sizes[d] + at;
  }
  return position;
}

/// y of Conv, or of ConvTranspose, which adds to the pixels that Conv would read.
std::vector<double> convolved(const ConvCase& c, const Tensor& x, const Tensor& w,
                              const Tensor* bias) {
  const bool transposed = !c.more.empty();
  const Sizes out = out_sizes(c);
  const int64_t per_in = c.channels / c.groups, per_out = c.outputs / c.groups;
  const int64_t in_pixels = product(c.in), pixels = product(out), places = product(c.kernel);
  std::vector<double> y(static_cast<size_t>(c.images * c.outputs * pixels));
  for (size_t i = 0; i < y.size() && bias; ++i)
    y[i] = bias->get(static_cast<int64_t>(i) / pixels % c.outputs);
  const Sizes &walked = transposed ? c.in : out, &seen = transposed ? out : c.in;
  for (int64_t p = 0; p < product(walked); ++p)
    for (int64_t k = 0; k < places; ++k) {
      const int64_t q = position_of(c, coordinates(p, walked), coordinates(k, c.kernel), seen);
      if (q < 0) continue;
      const int64_t x_at = transposed ? p : q, y_at = transposed ? q : p;
      for (int64_t n = 0; n < c.images; ++n)
        for (int64_t o = 0; o < c.outputs; ++o)
          for (int64_t i = 0; i < per_in; ++i) {
            const int64_t channel = o / per_out * per_in + i;
            const int64_t weight = transposed ? channel * per_out + o % per_out : o * per_in + i;
            y[static_cast<size_t>((n * c.outputs + o) * pixels + y_at)] +=
                x.get((n * c.channels + channel) * in_pixels + x_at) * w.get(weight * places + k);
          }
    }
  return y;
}

Sizes joined(Sizes sizes, const Sizes& more) {
  sizes.insert(sizes.end(), more.begin(), more.end());
  return sizes;
}

Sizes pixel_strides(const Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

/// `suffix` is that of the kernel's name: "_pixels_cpu" is of channels-last images.
void check_conv(const ConvCase& c, DType dtype, bool with_bias,
                const std::string& suffix = "_cpu") {
  const bool transposed = !c.more.empty(), pixels = suffix != "_cpu";
  const Sizes x_sizes = joined({c.images, c.channels}, c.in),
              y_sizes = joined({c.images, c.outputs}, out_sizes(c));
  Tensor x = Tensor::random(dtype, x_sizes, 1, -2, 2, pixels ? pixel_strides(x_sizes) : Sizes());
  Tensor w = Tensor::random(dtype,
                            joined(transposed ? Sizes{c.channels, c.outputs / c.groups}
                                              : Sizes{c.outputs, c.channels / c.groups},
                                   c.kernel),
                            2);
  Tensor bias = Tensor::random(dtype, {c.outputs}, 3);
  Tensor y(dtype, y_sizes, pixels ? pixel_strides(y_sizes) : Sizes());
  const std::vector<double> expected = convolved(c, x, w, with_bias ? &bias : nullptr);
  Attrs attrs = attrs_of(c);
  if (pixels) attrs.set("channels_last", 1);
  const double ulps = 8.0 + 2.0 * static_cast<double>(c.channels / c.groups * product(c.kernel));
  std::vector<Tensor*> in{&x, &w};
  if (with_bias) in.push_back(&bias);
  SCOPED_TRACE(str(name_of(dtype), " ", ::testing::PrintToString(x.sizes()), " ",
                   ::testing::PrintToString(w.sizes()), " in ", c.groups, " groups"));
  run_kernel_named((transposed ? "conv_transpose" : "conv") + suffix,
                   transposed ? "ConvTranspose" : "Conv", attrs, in, {&y},
                   [&] { expect_close(y, expected, ulps, 1, "y"); });
}

const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> cases = {
      {2, 5, 7, 1, {9, 11}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {1, 3, 33, 1, {12, 17}, {3, 5}, {2, 3}, {0, 2, 1, 1}, {1, 2}},  // unequal pads
      {2, 40, 300, 1, {6, 5}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},  // a matrix product
      {1, 70, 17, 1, {7, 7}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   // more than a piece
      {1, 8, 12, 4, {10, 9}, {3, 2}, {2, 1}, {1, 0, 1, 1}, {2, 1}},   // groups
      {1, 6, 6, 6, {13, 8}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},    // depthwise
      {2, 3, 6, 3, {9, 50}, {5, 5}, {2, 2}, {2, 2, 1, 1}, {1, 1}},
      {1, 2, 2, 2, {3, 1500}, {2, 3}, {1, 1}, {0, 1, 0, 1}, {1, 1}},  // lines of several chunks
      {2, 1, 20, 1, {700}, {25}, {4}, {10, 3}, {3}},                  // one dimension
      {1, 3, 4, 1, {5, 6, 7}, {2, 3, 2}, {1, 2, 1}, {1, 0, 1, 0, 1, 1}, {1, 1, 2}},
      {1, 2, 2, 2, {4, 5, 6}, {3, 3, 3}, {1, 1, 2}, {1, 1, 1, 1, 1, 1}, {1, 1, 1}},
      {1, 2, 3, 1, {2, 2}, {3, 3}, {1, 1}, {4, 4, 4, 4}, {1, 1}},  // windows beside the image
      {0, 2, 3, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {1, 30, 50, 1, {5, 31}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   // several pieces and tiles
      {1, 256, 24, 1, {9, 7}, {1, 3}, {1, 1}, {0, 1, 0, 1}, {1, 1}},   // pixels of a page's quarter
      {2, 24, 40, 1, {14, 14}, {1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}},  // pixels that nobody sees
      {1, 3, 19, 1, {16, 50}, {7, 7}, {2, 2}, {3, 3, 3, 3}, {1, 1}},   // runs of 21
      {1, 12, 3, 1, {6, 70}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},    // few outputs
      {1, 6, 1, 1, {9, 130}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},    // one
      {3, 4, 4, 4, {7, 7}, {5, 5}, {1, 1}, {2, 2, 2, 2}, {1, 1}},      // small planes
      {1, 2, 2, 2, {30, 5}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {1, 3, 3, 3, {41, 67}, {3, 3}, {3, 3}, {0, 1, 1, 0}, {1, 2}},
      {1, 2, 2, 2, {3, 29}, {1, 17}, {1, 2}, {0, 1, 0, 1}, {1, 1}},  // no room between phases
      {1, 2, 2, 2, {9000}, {3}, {1}, {1, 1}, {1}},                   // bands of a line
      {1, 40, 8, 1, {2, 500}, {2, 3}, {1, 1}, {0, 1, 0, 1}, {1, 1}},
      {1, 300, 20, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},  // one pixel
      // Windows that share lines: all of them, some, those that are dilated, narrow ones.
      {1, 2, 2, 2, {21, 37}, {5, 3}, {1, 1}, {2, 1, 2, 1}, {1, 1}},
      {2, 2, 2, 2, {23, 18}, {7, 7}, {2, 2}, {3, 3, 3, 3}, {1, 1}},
      {1, 2, 2, 2, {19, 41}, {5, 5}, {2, 1}, {0, 2, 1, 2}, {1, 1}},
      {1, 2, 2, 2, {27, 40}, {3, 3}, {1, 1}, {3, 3, 3, 3}, {3, 3}},
      {1, 2, 2, 2, {25, 19}, {5, 5}, {1, 1}, {4, 4, 4, 4}, {2, 2}},
      {1, 2, 2, 2, {9, 6}, {7, 3}, {1, 1}, {3, 1, 3, 1}, {1, 1}},
      {1, 2, 2, 2, {12, 6}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}},
      // Places farther apart than a band is long: of columns, of columns with a stride, of rows.
      {1, 33, 20, 1, {3100}, {3}, {1}, {1500, 1400}, {1500}},
      {1, 33, 7, 1, {3300}, {2}, {3}, {700, 0}, {2900}},
      {1, 130, 9, 1, {90, 20}, {3, 2}, {2, 1}, {40, 3, 35, 0}, {40, 1}},
      {1, 60, 6, 1, {2, 9, 400}, {1, 2, 3}, {1, 1, 1}, {0, 5, 90, 0, 0, 90}, {1, 6, 95}},
  };
  return cases;
}

TEST(Conv, FollowsItsDefinition) {
  for (const ConvCase& c : conv_cases())
    for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
      check_conv(c, dtype, dtype != DType::Float64);
}

double activated(const std::string& name, double x, double a, double b) {
  const double hard = std::clamp(x / 6 + 0.5, 0.0, 1.0);
  if (name == "Relu") return std::max(x, 0.0);
  if (name == "Clip") return std::clamp(x, a, b);
  if (name == "LeakyRelu") return x > 0 ? x : a * x;
  if (name == "Elu") return x > 0 ? x : a * std::expm1(x);
  if (name == "HardSigmoid") return hard;
  if (name == "HardSwish") return x * hard;
  if (name == "Sigmoid") return 1 / (1 + std::exp(-x));
  if (name == "Silu") return x / (1 + std::exp(-x));
  if (name == "Tanh") return std::tanh(x);
  if (name == "Mish") return x * std::tanh(std::log1p(std::exp(x)));
  return x;
}

// Cases for each method: windows, the image itself (in several pieces, too), few outputs,
// depthwise.
const std::vector<ConvCase>& fused_cases() {
  static const std::vector<ConvCase> cases = {
      {2, 3, 9, 1, {5, 7}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {1, 7, 18, 1, {9, 5}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {1, 170, 19, 1, {9, 13}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {1, 4, 2, 1, {7, 9}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
      {1, 3, 3, 3, {6, 11}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
  };
  return cases;
}

void check_fused(const ConvCase& c, const std::string& activation, DType dtype, bool adds) {
  Tensor x = Tensor::random(dtype, joined({c.images, c.channels}, c.in), 1, -1, 1);
  Tensor w =
      Tensor::random(dtype, joined({c.outputs, c.channels / c.groups}, c.kernel), 2, -0.5, 0.5);
  Tensor bias = Tensor::random(dtype, {c.outputs}, 3);
  Tensor y(dtype, joined({c.images, c.outputs}, out_sizes(c)));
  Tensor z = Tensor::random(dtype, y.sizes(), 4);
  std::vector<double> expected = convolved(c, x, w, &bias);
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] = activated(activation, expected[i] + (adds ? z.get(static_cast<int64_t>(i)) : 0.0),
                            -0.25, 0.75);
  Attrs attrs = attrs_of(c);
  attrs.set("activation", activation);
  attrs.set("alpha", -0.25);
  attrs.set("beta", 0.75);
  SCOPED_TRACE(str(activation, " ", name_of(dtype)));
  std::vector<Tensor*> in{&x, &w, &bias};
  if (adds) in.push_back(&z);
  run_kernel_named("fused_conv_cpu", "FusedConv", attrs, in, {&y},
                   [&] { expect_close(y, expected, 200, 1, "y"); });
}

TEST(FusedConv, AddsAndActivates) {
  for (const ConvCase& c : fused_cases())
    for (const std::string activation : {"", "Relu", "Clip", "LeakyRelu", "Elu", "HardSigmoid",
                                         "HardSwish", "Sigmoid", "Silu", "Tanh", "Mish"})
      for (DType dtype : {DType::Float32, DType::Float64, DType::Float16})
        for (bool adds : {false, true}) check_fused(c, activation, dtype, adds);
}

/// Weights as PackConvWeights gives them.
Tensor packed_weights(const ConvCase& c, Tensor& w) {
  const bool by_channel = c.groups > 1 && c.channels == c.groups && c.outputs == c.groups;
  Sizes sizes = {by_channel ? (c.groups + 15) / 16 : c.groups * ((c.outputs / c.groups + 15) / 16)};
  sizes.insert(sizes.end(), c.kernel.begin(), c.kernel.end());
  sizes.push_back(c.channels / c.groups);
  sizes.push_back(16);
  Tensor packed(w.dtype(), sizes);
  run_kernel_named("pack_conv_weights_cpu", "PackConvWeights", {{"group", c.groups}}, {&w},
                   {&packed}, [] {});
  return packed;
}

TEST(Conv, TakesPackedWeights) {
  std::vector<ConvCase> cases = fused_cases();
  cases.push_back({1, 6, 38, 2, {4, 5}, {3, 2}, {1, 1}, {1, 1, 1, 1}, {1, 1}});
  for (const ConvCase& c : cases)
    for (DType dtype : {DType::Float32, DType::Float64}) {
      Tensor x = Tensor::random(dtype, joined({c.images, c.channels}, c.in), 1);
      Tensor w = Tensor::random(dtype, joined({c.outputs, c.channels / c.groups}, c.kernel), 2);
      Tensor packed = packed_weights(c, w);
      Tensor y(dtype, joined({c.images, c.outputs}, out_sizes(c)));
      const std::vector<double> expected = convolved(c, x, w, nullptr);
      Attrs attrs = attrs_of(c);
      attrs.set("packed_outputs", c.outputs);
      run_kernel_named("conv_cpu", "Conv", attrs, {&x, &packed}, {&y},
                       [&] { expect_close(y, expected, 200, 1, "y"); });
    }
}

/// Packed weights of float16, by either kernel: `x` and `y` are row-major or pixels.
void check_half_weights(const ConvCase& c, bool pixels) {
  const Sizes x_sizes = joined({c.images, c.channels}, c.in),
              y_sizes = joined({c.images, c.outputs}, out_sizes(c));
  Tensor x =
      Tensor::random(DType::Float32, x_sizes, 1, -1, 1, pixels ? pixel_strides(x_sizes) : Sizes());
  Tensor w =
      Tensor::random(DType::Float16, joined({c.outputs, c.channels / c.groups}, c.kernel), 2);
  Tensor packed = packed_weights(c, w);
  Tensor y(DType::Float32, y_sizes, pixels ? pixel_strides(y_sizes) : Sizes());
  const std::vector<double> expected = convolved(c, x, w, nullptr);
  Attrs attrs = attrs_of(c);
  attrs.set("packed_outputs", c.outputs);
  if (pixels) attrs.set("channels_last", 1);
  const double ulps = 100.0 + 2.0 * static_cast<double>(c.channels / c.groups * product(c.kernel));
  SCOPED_TRACE(str(pixels ? "pixels " : "", ::testing::PrintToString(x_sizes), " ",
                   ::testing::PrintToString(w.sizes())));
  run_kernel_named(pixels ? "conv_pixels_cpu" : "conv_cpu", "Conv", attrs, {&x, &packed}, {&y},
                   [&] { expect_close(y, expected, ulps, 1, "y"); });
}

TEST(Conv, WidensPackedWeights) {
  std::vector<ConvCase> cases = conv_cases();
  cases.insert(cases.end(), fused_cases().begin(), fused_cases().end());
  cases.push_back({1, 300, 70, 1, {5, 43}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}});
  for (const ConvCase& c : cases)
    for (bool pixels : {false, true})
      if (!pixels || c.in.size() == 2) check_half_weights(c, pixels);
}

const std::vector<ConvCase>& transposed_cases() {
  static const std::vector<ConvCase> cases = {
      {2, 5, 7, 1, {4, 6}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, {0, 0}},
      {1, 20, 9, 1, {5, 7}, {4, 4}, {2, 2}, {1, 1, 1, 1}, {1, 1}, {0, 0}},
      {1, 300, 2, 1, {5, 3}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}, {0, 0}},
      {1, 3, 4, 1, {5, 4}, {3, 2}, {2, 3}, {0, 1, 1, 0}, {2, 1}, {1, 2}},  // unequal pads
      {1, 6, 9, 3, {5, 4}, {3, 3}, {3, 1}, {1, 0, 1, 0}, {1, 2}, {2, 0}},  // groups
      {1, 2, 2, 1, {4, 3}, {1, 2}, {3, 2}, {0, 0, 0, 0}, {1, 1}, {2, 0}},  // outputs of no place
      {1, 4, 3, 1, {90}, {16}, {8}, {4, 4}, {1}, {0}},
      {1, 3, 2, 1, {3, 4, 2}, {2, 3, 2}, {2, 1, 2}, {0, 1, 0, 1, 0, 0}, {1, 1, 1}, {0, 0, 1}},
      {0, 2, 3, 1, {4, 4}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}, {0, 0}},
      {1, 3, 20, 1, {2, 1}, {2, 3}, {3, 7}, {1, 1, 1, 1}, {1, 1}, {0, 0}},  // phases of no output
  };
  return cases;
}

TEST(ConvTranspose, FollowsItsDefinition) {
  for (const ConvCase& c : transposed_cases())
    for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
      check_conv(c, dtype, dtype != DType::Float64);
}

TEST(ConvTranspose, TakesPackedWeights) {
  for (const ConvCase& c : transposed_cases())
    for (bool pixels : {false, true})
      for (DType dtype : {DType::Float32, DType::Float64}) {
        if (pixels && (dtype != DType::Float32 || c.in.size() != 2)) continue;
        const Sizes x_sizes = joined({c.images, c.channels}, c.in),
                    y_sizes = joined({c.images, c.outputs}, out_sizes(c));
        Tensor x =
            Tensor::random(dtype, x_sizes, 1, -2, 2, pixels ? pixel_strides(x_sizes) : Sizes());
        Tensor w = Tensor::random(dtype, joined({c.channels, c.outputs / c.groups}, c.kernel), 2);
        Sizes sizes = joined({c.groups * ((c.outputs / c.groups + 15) / 16)}, c.kernel);
        Tensor packed(dtype, joined(sizes, {c.channels / c.groups, 16}));
        Attrs attrs = attrs_of(c);
        run_kernel_named("pack_conv_transpose_weights_cpu", "PackConvTransposeWeights", attrs, {&w},
                         {&packed}, [] {});
        Tensor y(dtype, y_sizes, pixels ? pixel_strides(y_sizes) : Sizes());
        attrs.set("packed_outputs", c.outputs);
        if (pixels) attrs.set("channels_last", 1);
        const std::vector<double> expected = convolved(c, x, w, nullptr);
        const StepFacts facts =
            facts_of({node_of("ConvTranspose", attrs, {&x, &packed}, {&y})}, {&x, &packed}, {&y});
        for (const KernelDef* kernel : kernels_of("ConvTranspose")) {
          if (kernel->name != (pixels ? "conv_transpose_pixels_cpu" : "conv_transpose_cpu") ||
              kernel->unsupported(facts))  // pixels where outputs see no place of the window
            continue;
          run_kernel(*kernel, facts, {&x, &packed}, {&y});
          expect_close(y, expected, 1024, 1, "y");
        }
      }
}

TEST(ConvTranspose, OfPixelsFollowsItsDefinition) {
  const std::vector<ConvCase> cases = {
      {2, 5, 7, 1, {4, 6}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, {0, 0}},
      {1, 20, 9, 1, {5, 7}, {4, 4}, {2, 2}, {1, 1, 1, 1}, {1, 1}, {0, 0}},
      {2, 300, 20, 1, {5, 3}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}, {0, 0}},
      {1, 6, 9, 3, {5, 4}, {3, 3}, {3, 1}, {1, 0, 1, 0}, {1, 2}, {0, 0}},  // groups
      {1, 4, 6, 1, {5, 1}, {2, 1}, {2, 1}, {0, 0, 0, 0}, {1, 1}, {0, 0}},  // a column
      {1, 4, 6, 1, {1, 5}, {1, 2}, {1, 2}, {0, 0, 0, 0}, {1, 1}, {0, 0}},
  };
  for (const ConvCase& c : cases)
    for (bool with_bias : {false, true}) check_conv(c, DType::Float32, with_bias, "_pixels_cpu");
}

// --- channels-last -------------------------------------------------------------------------------
/// `apart`: elements between the channels of neighbouring pixels of x, a slice.
void check_pixels(const ConvCase& c, const std::string& activation, bool packs, bool adds,
                  int64_t apart = 0) {
  const Sizes x_sizes = joined({c.images, c.channels}, c.in),
              y_sizes = joined({c.images, c.outputs}, out_sizes(c));
  Sizes wider = x_sizes;
  wider[1] += apart;
  Tensor x = Tensor::random(DType::Float32, x_sizes, 1, -1, 1, pixel_strides(wider));
  Tensor w = Tensor::random(DType::Float32, joined({c.outputs, c.channels / c.groups}, c.kernel), 2,
                            -0.5, 0.5);
  Tensor bias = Tensor::random(DType::Float32, {c.outputs}, 3);
  Tensor z = Tensor::random(DType::Float32, y_sizes, 4, -1, 1, pixel_strides(y_sizes));
  Tensor y(DType::Float32, y_sizes, pixel_strides(y_sizes));
  std::vector<double> expected = convolved(c, x, w, &bias);
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] = activated(activation, expected[i] + (adds ? z.get(static_cast<int64_t>(i)) : 0.0),
                            -0.25, 0.75);
  Attrs attrs = attrs_of(c);
  attrs.set("channels_last", 1);
  attrs.set("activation", activation);
  attrs.set("alpha", -0.25);
  attrs.set("beta", 0.75);
  Tensor packed;
  if (packs) {
    packed = packed_weights(c, w);
    attrs.set("packed_outputs", c.outputs);
  }
  SCOPED_TRACE(str(activation, " ", ::testing::PrintToString(x_sizes), " ",
                   ::testing::PrintToString(w.sizes()), packs ? " packed" : ""));
  std::vector<Tensor*> in{&x, packs ? &packed : &w, &bias};
  if (adds) in.push_back(&z);
  run_kernel_named("fused_conv_pixels_cpu", "FusedConv", attrs, in, {&y},
                   [&] { expect_close(y, expected, 400, 1, "y"); });
}

TEST(Conv, OfPixelsFollowsItsDefinition) {
  std::vector<ConvCase> cases = conv_cases();
  const std::vector<ConvCase> more = {
      {1, 1024, 20, 1, {9, 9}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},  // pixels of a page
      {1, 6, 20, 1, {9, 20}, {3, 3}, {1, 1}, {0, 0, 0, 0}, {1, 1}},    // no padding
      {2, 37, 37, 37, {9, 23}, {7, 7}, {1, 1}, {3, 3, 3, 3}, {1, 1}},  // blocks of channels
      {1, 20, 20, 20, {6, 19}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {1, 18, 18, 18, {6, 19}, {5, 5}, {2, 2}, {2, 2, 2, 2}, {1, 1}},
      {1, 33, 33, 33, {9, 40}, {3, 5}, {1, 1}, {1, 2, 1, 2}, {1, 1}},
      {1, 24, 24, 24, {9, 8}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}},
      // Windows with gaps, of which few places see the image.
      {2, 70, 20, 1, {9, 11}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}},
      {1, 64, 40, 1, {7, 6}, {3, 3}, {1, 1}, {9, 9, 9, 9}, {9, 9}},
      {1, 300, 18, 1, {17, 23}, {3, 3}, {2, 1}, {3, 6, 3, 6}, {3, 6}},
      {1, 128, 12, 2, {8, 9}, {3, 2}, {2, 1}, {4, 3, 4, 3}, {4, 3}},
      {1, 32, 32, 32, {9, 21}, {3, 3}, {1, 1}, {6, 6, 6, 6}, {6, 6}},
      {2, 16, 16, 16, {12, 9}, {2, 3}, {2, 1}, {9, 4, 9, 4}, {9, 4}},
      {1, 48, 48, 48, {30}, {3}, {2}, {9, 4}, {7}},
      {1, 64, 8, 1, {2, 40}, {2, 2}, {1, 1}, {20, 20, 20, 20}, {2, 2}},  // outputs that see none
  };
  cases.insert(cases.end(), more.begin(), more.end());
  for (const ConvCase& c : cases) {
    if (c.in.size() != 2) continue;
    for (bool packs : {false, true}) check_pixels(c, "", packs, false);
    check_pixels(c, "Relu", true, false, 5);
  }
}

TEST(FusedConv, OfPixelsAddsAndActivates) {
  std::vector<ConvCase> cases = fused_cases();
  cases.push_back({1, 21, 21, 21, {6, 11}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}});
  for (const ConvCase& c : cases)
    for (const std::string activation : {"", "Relu", "Clip", "LeakyRelu", "Elu", "HardSigmoid",
                                         "HardSwish", "Sigmoid", "Silu", "Tanh", "Mish"})
      for (bool adds : {false, true}) check_pixels(c, activation, false, adds);
}

// A window that does not see a NaN is a number, and one that sees zeros beside the image gets no
// NaN from them.
TEST(Conv, KeepsNaNInItsWindows) {
  const ConvCase c = conv_cases()[0];
  Tensor x = Tensor::random(DType::Float32, {c.images, c.channels, 9, 11}, 1);
  Tensor w = Tensor::random(DType::Float32, {c.outputs, c.channels, 3, 3}, 2);
  x.set(4 * 11 + 5, std::nan(""));
  x.set(0, HUGE_VAL);
  Tensor y(DType::Float32, {c.images, c.outputs, 9, 11});
  const std::vector<double> expected = convolved(c, x, w, nullptr);
  run_kernel_named("conv_cpu", "Conv", attrs_of(c), {&x, &w}, {&y},
                   [&] { expect_close(y, expected, 100, 1, "y"); });
}

}  // namespace
}  // namespace ortmodule::testing
