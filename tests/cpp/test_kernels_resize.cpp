// Resize of our own against ONNX's formulas, dimension by dimension in double. Scales are such that
// no coordinate lies between two elements by rounding alone.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct ResizeCase {
  std::string mode;
  Sizes in, out;               // spatial
  std::vector<double> scales;  // 0: the ratio of the sizes
  Attrs more = {};
};

/// Along one dimension, as a matrix [out, in] and whether an output lies outside.
struct Weights {
  std::vector<std::vector<double>> rows;
  std::vector<bool> outside;
};

double coordinate(const ResizeCase& c, const std::string& name, size_t d, int64_t o) {
  const auto in = static_cast<double>(c.in[d]), out = static_cast<double>(c.out[d]);
  const double scale = c.scales[d] != 0 ? c.scales[d] : out / in, at = static_cast<double>(o);
  if (name == "asymmetric" || scale == 1) return at / scale;
  if (name == "align_corners") return out == 1 ? 0 : at * (in - 1) / (out - 1);
  if (name == "tf_half_pixel_for_nn") return (at + 0.5) / scale;
  if (name == "pytorch_half_pixel" && out == 1) return 0;
  if (name == "tf_crop_and_resize") {
    const double begin = c.more.numbers("roi")[d], end = c.more.numbers("roi")[c.in.size() + d];
    if (out == 1) return 0.5 * (begin + end) * (in - 1);
    return begin * (in - 1) + at * (end - begin) * (in - 1) / (out - 1);
  }
  const double x = (at + 0.5) / scale - 0.5;
  if (name != "half_pixel_symmetric") return x;
  return in / 2 * (1 - out / (scale * in)) + x;
}

double cubic(double x, double a) {
  x = std::fabs(x);
  if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a : 0;
}

int64_t nearest(double x, const std::string& how) {
  if (how == "floor") return static_cast<int64_t>(std::floor(x));
  if (how == "ceil") return static_cast<int64_t>(std::ceil(x));
  if (how == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5));
  return static_cast<int64_t>(std::ceil(x - 0.5));
}

Weights weights_along(const ResizeCase& c, size_t d) {
  const std::string name = c.more.string("coordinate_transformation_mode", "half_pixel");
  const int64_t in = c.in[d];
  const double last = static_cast<double>(in - 1), a = c.more.number("cubic_coeff_a", -0.75);
  const double scale =
      c.scales[d] != 0 ? c.scales[d] : static_cast<double>(c.out[d]) / static_cast<double>(in);
  const bool antialias = c.more.flag("antialias"), excludes = c.more.flag("exclude_outside");
  const double squeeze = antialias ? std::min(scale, 1.0) : 1.0;
  Weights weights;
  for (int64_t o = 0; o < c.out[d]; ++o) {
    const double x = coordinate(c, name, d, o);
    std::vector<double>& row = weights.rows.emplace_back(static_cast<size_t>(in), 0.0);
    weights.outside.push_back(name == "tf_crop_and_resize" && (x < 0 || x > last));
    const auto add = [&](int64_t i, double weight) {
      if (excludes && (i < 0 || i >= in)) return;
      row[static_cast<size_t>(std::clamp<int64_t>(i, 0, in - 1))] += weight;
    };
    if (c.mode == "nearest") {
      add(std::clamp<int64_t>(nearest(x, c.more.string("nearest_mode", "round_prefer_floor")), 0,
                              in - 1),
          1);
      continue;
    }
    for (int64_t i = -40; i < in + 40; ++i) {
      const double distance = (static_cast<double>(i) - x) * squeeze;
      add(i, c.mode == "cubic" ? cubic(distance, a) : std::max(0.0, 1 - std::fabs(distance)));
    }
    double sum = 0;
    for (const double weight : row) sum += weight;
    for (double& weight : row)
      if (antialias || excludes) weight /= sum;
  }
  return weights;
}

Sizes coordinates(int64_t position, const Sizes& sizes) {
  Sizes at(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    at[d] = position % sizes[d];
    position /= sizes[d];
  }
  return at;
}

std::vector<double> resized(const ResizeCase& c, const Tensor& x) {
  std::vector<Weights> along;
  for (size_t d = 0; d < c.in.size(); ++d) along.push_back(weights_along(c, d));
  const int64_t in = element_count(c.in), out = element_count(c.out);
  std::vector<double> y;
  for (int64_t plane = 0; plane < x.count() / in; ++plane)
    for (int64_t q = 0; q < out; ++q) {
      const Sizes to = coordinates(q, c.out);
      double sum = 0;
      bool outside = false;
      for (size_t d = 0; d < to.size(); ++d)
        outside = outside || along[d].outside[static_cast<size_t>(to[d])];
      for (int64_t p = 0; p < in; ++p) {
        const Sizes from = coordinates(p, c.in);
        double weight = 1;
        for (size_t d = 0; d < to.size(); ++d)
          weight *= along[d].rows[static_cast<size_t>(to[d])][static_cast<size_t>(from[d])];
        if (weight != 0) sum += weight * x.get(plane * in + p);
      }
      y.push_back(outside ? c.more.number("extrapolation_value", 0.0) : sum);
    }
  return y;
}

void check_resize(const ResizeCase& c, DType dtype) {
  const auto joined = [](const Sizes& spatial) {
    Sizes sizes{2, 3};
    sizes.insert(sizes.end(), spatial.begin(), spatial.end());
    return sizes;
  };
  SCOPED_TRACE(str(c.mode, " ", name_of(dtype), " ", ::testing::PrintToString(c.in), " to ",
                   ::testing::PrintToString(c.out), " ",
                   c.more.string("coordinate_transformation_mode", "")));
  const double least = dtype == DType::UInt8 || dtype == DType::Bool ? 0 : -2;
  Tensor x = Tensor::random(dtype, joined(c.in), 1, least, 2), y(dtype, joined(c.out));
  Attrs attrs = c.more;
  attrs.set("mode", c.mode);
  attrs.set("sizes", Dims(c.out.begin(), c.out.end()));
  attrs.set("scales", c.scales);
  const std::vector<double> expected = resized(c, x);
  // Coordinates of float have errors of their own, which the slope of x multiplies.
  const double ulps = c.mode == "nearest" ? 0 : dtype == DType::Float64 ? 0x1p36 : 100;
  run_kernel_named("resize_cpu", "Resize", attrs, {&x}, {&y},
                   [&] { expect_close(y, expected, ulps, 2, "y"); });
  if (c.in.size() == 1) return;
  Tensor last(dtype, x.sizes(), channels_last_strides(x.sizes()));
  for (int64_t i = 0; i < x.count(); ++i) last.set(i, x.get(i));
  Tensor resized_last(dtype, y.sizes(), channels_last_strides(y.sizes()));
  run_kernel_named("resize_cpu", "Resize", attrs, {&last}, {&resized_last},
                   [&] { EXPECT_TRUE(resized_last.same_bits(y)) << "channels-last"; });
}

TEST(Resize, FollowsONNXsFormulas) {
  const std::vector<double> none{0, 0}, doubled{2, 2};
  const auto at = [](const char* coordinates, Attrs more = {}) {
    more.set("coordinate_transformation_mode", std::string(coordinates));
    return more;
  };
  std::vector<ResizeCase> cases;
  for (const std::string mode : {"linear", "cubic"}) {
    for (const char* name : {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
                             "half_pixel_symmetric"}) {
      cases.push_back({mode, {5, 4}, {9, 1}, none, at(name)});
      cases.push_back({mode, {6, 9}, {4, 7}, {0.7, 0.8}, at(name)});
    }
    cases.push_back({mode, {5, 4}, {10, 8}, doubled, {{"exclude_outside", 1}}});
    cases.push_back({mode, {5, 4}, {10, 8}, doubled, {{"cubic_coeff_a", -0.5}}});
    for (int64_t excludes : {0, 1})
      cases.push_back(
          {mode, {31, 8}, {4, 20}, none, {{"antialias", 1}, {"exclude_outside", excludes}}});
    cases.push_back({mode,
                     {6, 7},
                     {5, 8},
                     none,
                     at("tf_crop_and_resize", {{"roi", std::vector<double>{0.2, -0.3, 0.7, 1.4}},
                                               {"extrapolation_value", 10.0}})});
    cases.push_back({mode, {7}, {12}, {0}});
    cases.push_back({mode, {3, 4, 5}, {5, 3, 7}, {0, 0, 0}, at("align_corners")});
  }
  for (const ResizeCase& c : cases)
    for (DType dtype : {DType::Float32, DType::Float64, DType::Float16}) check_resize(c, dtype);
}

TEST(Resize, CopiesTheNearestOfAnyType) {
  for (const char* rounding : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"})
    for (const char* name : {"half_pixel", "asymmetric", "align_corners", "tf_half_pixel_for_nn"})
      for (DType dtype :
           {DType::Float32, DType::BFloat16, DType::Int64, DType::UInt8, DType::Bool}) {
        const Attrs attrs{{"coordinate_transformation_mode", std::string(name)},
                          {"nearest_mode", std::string(rounding)}};
        check_resize({"nearest", {4, 6}, {8, 3}, {2, 0.5}, attrs}, dtype);
        check_resize({"nearest", {5}, {20}, {4}, attrs}, dtype);
        for (const int64_t width : {3, 16, 37})  // less than a vector, whole ones, and a rest
          check_resize({"nearest", {4, width}, {8, 2 * width}, {2, 2}, attrs}, dtype);
        check_resize({"nearest", {2, 3, 2}, {4, 3, 8}, {0, 0, 0}, attrs}, dtype);
      }
  check_resize({"nearest",
                {4, 4},
                {4, 4},
                {0, 0},
                {{"coordinate_transformation_mode", std::string("tf_crop_and_resize")},
                 {"roi", std::vector<double>{0, 0.5, 1, 2}},
                 {"extrapolation_value", 7.0}}},
               DType::Int32);
}

// The names of torch's operators mean the same as ONNX's attributes.
TEST(Resize, KnowsTorchsModes) {
  const auto run = [](const std::string& mode, bool corners, const Attrs& onnx, DType dtype) {
    const size_t n = mode.find("1d") != std::string::npos   ? 1
                     : mode.find("3d") != std::string::npos ? 3
                                                            : 2;
    ResizeCase c{onnx.string("mode"), Sizes(n, 6), Sizes(n, 9), std::vector<double>(n, 0.0), onnx};
    Sizes in(n, 6), out(n, 9);
    in.insert(in.begin(), 2, 2);
    out.insert(out.begin(), 2, 2);
    Tensor x = Tensor::random(dtype, in, 1), y(dtype, out);
    const std::vector<double> expected = resized(c, x);
    run_kernel_named("resize_cpu", "Resize",
                     {{"mode", mode},
                      {"sizes", Dims(n, DimExpr(9))},
                      {"scales", std::vector<double>(n, 0.0)},
                      {"align_corners", int64_t{corners}}},
                     {&x}, {&y}, [&] { expect_close(y, expected, 100, 2, mode); });
  };
  const auto onnx = [](const char* mode, const char* coordinates, Attrs more = {}) {
    more.set("mode", std::string(mode));
    more.set("coordinate_transformation_mode", std::string(coordinates));
    return more;
  };
  const Attrs floor{{"nearest_mode", std::string("floor")}},
      up{{"nearest_mode", std::string("round_prefer_ceil")}};
  for (const char* mode : {"nearest1d", "nearest2d", "nearest3d"})
    run(mode, false, onnx("nearest", "asymmetric", floor), DType::Float32);
  for (const char* mode : {"nearest_exact1d", "nearest_exact2d", "nearest_exact3d"})
    run(mode, false, onnx("nearest", "half_pixel", up), DType::Float64);
  for (const char* mode : {"linear1d", "bilinear2d", "trilinear3d"})
    for (bool corners : {false, true})
      run(mode, corners, onnx("linear", corners ? "align_corners" : "half_pixel"), DType::Float64);
  run("bicubic2d", false, onnx("cubic", "half_pixel"), DType::Float32);
  const Attrs windows{{"antialias", 1}, {"exclude_outside", 1}, {"cubic_coeff_a", -0.5}};
  run("bilinear2d_aa", false, onnx("linear", "half_pixel", windows), DType::Float32);
  run("bicubic2d_aa", false, onnx("cubic", "half_pixel", windows), DType::Float32);
}

TEST(Resize, RefusesWhatItDoesNotKnow) {
  Tensor x = Tensor::random(DType::Int32, {1, 1, 4}, 1), y(DType::Int32, {1, 1, 8});
  const auto reason = [&](const Attrs& attrs) {
    const StepFacts facts = facts_of({node_of("Resize", attrs, {&x}, {&y})}, {&x}, {&y});
    std::string why;
    EXPECT_EQ(select_kernel("Resize", Device::CPU, facts, &why), nullptr);
    return why;
  };
  EXPECT_NE(reason({{"mode", std::string("sinc")}}).find("name no mode"), std::string::npos);
  EXPECT_NE(reason({{"mode", std::string("linear")},
                    {"coordinate_transformation_mode", std::string("quarter_pixel")}})
                .find("name no mode"),
            std::string::npos);
  EXPECT_NE(reason({{"mode", std::string("linear")}}).find("floats only"), std::string::npos);
}

}  // namespace
}  // namespace ortmodule::testing
