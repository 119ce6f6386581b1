// RoiAlign and MaxRoiPool against their definitions, sample by sample and element by element.
#include <algorithm>
#include <cmath>
#include <limits>

#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

const std::vector<double> kRegions = {0,   0,   9,   9,    // whole elements
                                      2.3, 1.2, 7.7, 5.1,  // between elements
                                      -3,  -2,  30,  4,    // beyond the image
                                      5,   5,   4,   4,    // end before they begin
                                      40,  40,  50,  50,
                                      0,   0,   11,  9};  // outside; twice of an image

struct AlignCase {
  int64_t samples;
  bool half_pixel, is_max;
};

/// The element at (row, column), by bilinear interpolation; its parts where `is_max`.
double sample_of(const Tensor& x, int64_t plane, double row, double column, bool is_max) {
  const int64_t height = x.sizes()[2], width = x.sizes()[3];
  if (row < -1 || row > static_cast<double>(height) || column < -1 ||
      column > static_cast<double>(width))
    return 0;
  const auto split = [](double at, int64_t size) {
    at = std::clamp(at, 0.0, static_cast<double>(size - 1));
    const double low = std::min(std::floor(at), static_cast<double>(size - 1));
    return std::array{low, at - low};
  };
  const auto [i, down] = split(row, height);
  const auto [j, across] = split(column, width);
  double sum = 0, largest = -std::numeric_limits<double>::infinity();
  for (int corner = 0; corner < 4; ++corner) {
    const int64_t r = std::min(static_cast<int64_t>(i) + corner / 2, height - 1);
    const int64_t c = std::min(static_cast<int64_t>(j) + corner % 2, width - 1);
    const double value = (corner / 2 ? down : 1 - down) * (corner % 2 ? across : 1 - across) *
                         x.get((plane * height + r) * width + c);
    sum += value, largest = std::max(largest, value);
  }
  return is_max ? largest : sum;
}

void check_align(const AlignCase& c, DType dtype) {
  constexpr int64_t kRows = 3, kColumns = 2, kChannels = 3;
  const double scale = 0.8, shift = c.half_pixel ? 0.5 : 0;
  const int64_t regions = std::ssize(kRegions) / 4;
  Tensor x = Tensor::random(dtype, {2, kChannels, 10, 12}, 1);
  Tensor rois = Tensor::of(dtype, {regions, 4}, kRegions);
  Tensor batch = Tensor::of(DType::Int64, {regions}, {0, 1, 1, 0, 1, 0});
  Tensor y(dtype, {regions, kChannels, kRows, kColumns});
  std::vector<double> expected;
  for (int64_t at = 0; at < y.count(); ++at) {
    const int64_t roi = at / (kChannels * kRows * kColumns);
    const int64_t plane =
        static_cast<int64_t>(batch.get(roi)) * kChannels + at / (kRows * kColumns) % kChannels;
    double start[2], bin[2];
    int64_t samples[2];
    for (int64_t d = 0; d < 2; ++d) {  // rows, columns
      start[d] = rois.get(4 * roi + 1 - d) * scale - shift;
      double extent = rois.get(4 * roi + 3 - d) * scale - shift - start[d];
      if (!c.half_pixel) extent = std::max(extent, 1.0);
      bin[d] = extent / static_cast<double>(d == 0 ? kRows : kColumns);
      samples[d] = c.samples > 0 ? c.samples : std::max<int64_t>(0, std::lround(std::ceil(bin[d])));
    }
    double sum = 0, largest = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < samples[0]; ++i)
      for (int64_t j = 0; j < samples[1]; ++j) {
        const auto place = [&](int64_t d, int64_t of_bin, int64_t k) {
          return start[d] + (static_cast<double>(of_bin) +
                             (static_cast<double>(k) + 0.5) / static_cast<double>(samples[d])) *
                                bin[d];
        };
        const double value = sample_of(x, plane, place(0, at / kColumns % kRows, i),
                                       place(1, at % kColumns, j), c.is_max);
        sum += value, largest = std::max(largest, value);
      }
    const int64_t count = samples[0] * samples[1];
    if (count == 0) largest = 0;
    expected.push_back(c.is_max ? largest : sum / static_cast<double>(std::max<int64_t>(count, 1)));
  }
  run_op("RoiAlign",
         {{"mode", std::string(c.is_max ? "max" : "avg")},
          {"output_height", kRows},
          {"output_width", kColumns},
          {"sampling_ratio", c.samples},
          {"spatial_scale", scale},
          {"half_pixel", c.half_pixel ? 1 : 0}},
         {&x, &rois, &batch}, {&y}, [&] { expect_close(y, expected, 64, 2, "RoiAlign"); });
}

TEST(Regions, AreAligned) {
  for (DType dtype : {DType::Float32, DType::Float64})
    for (int64_t samples : {0, 1, 2, 5})
      for (bool half_pixel : {false, true})
        for (bool is_max : {false, true}) check_align({samples, half_pixel, is_max}, dtype);
}

TEST(Regions, OfHugeSizeAreNamed) {
  Tensor x = Tensor::random(DType::Float32, {1, 1, 4, 4}, 1), y(DType::Float32, {1, 1, 1, 1});
  Tensor rois = Tensor::of(DType::Float32, {1, 4}, {0, 0, 1e9, 1});
  Tensor batch = Tensor::of(DType::Int64, {1}, {0});
  const Attrs attrs{{"mode", std::string("avg")}, {"output_height", 1},   {"output_width", 1},
                    {"sampling_ratio", 0},        {"spatial_scale", 1.0}, {"half_pixel", 1}};
  const std::vector<Tensor*> in{&x, &rois, &batch}, out{&y};
  for (const KernelDef* def : kernels_of("RoiAlign"))
    EXPECT_THROW(
        run_kernel(*def, facts_of({node_of("RoiAlign", attrs, in, out)}, in, out), in, out), Error)
        << def->name;
}

TEST(Regions, ArePooled) {
  constexpr int64_t kRows = 3, kColumns = 2, kChannels = 3;
  const double scale = 0.75;
  for (DType dtype : {DType::Float32, DType::Float64}) {
    Tensor x = Tensor::random(dtype, {2, kChannels, 10, 12}, 1);
    x.set(37, std::nan(""));
    std::vector<double> regions;
    for (size_t i = 0; i < kRegions.size(); ++i) {
      if (i % 4 == 0) regions.push_back(static_cast<double>(i / 4 % 2));
      regions.push_back(kRegions[i]);
    }
    const int64_t count = std::ssize(regions) / 5;
    Tensor rois = Tensor::of(dtype, {count, 5}, regions);
    Tensor y(dtype, {count, kChannels, kRows, kColumns});
    std::vector<double> expected;
    for (int64_t at = 0; at < y.count(); ++at) {
      const int64_t roi = at / (kChannels * kRows * kColumns);
      int64_t begin[2], end[2];
      for (int64_t d = 0; d < 2; ++d) {
        const double bins = d == 0 ? kRows : kColumns, size = d == 0 ? 10 : 12;
        const double first = std::round(rois.get(5 * roi + 2 - d) * scale);
        const double last = std::round(rois.get(5 * roi + 4 - d) * scale);
        const double bin = std::max(last - first + 1, 1.0) / bins;
        const auto own = static_cast<double>(d == 0 ? at / kColumns % kRows : at % kColumns);
        begin[d] = static_cast<int64_t>(std::clamp(std::floor(own * bin) + first, 0.0, size));
        end[d] = static_cast<int64_t>(std::clamp(std::ceil((own + 1) * bin) + first, 0.0, size));
      }
      double largest = begin[0] < end[0] && begin[1] < end[1] ? -1e30 : 0;
      const int64_t plane =
          static_cast<int64_t>(rois.get(5 * roi)) * kChannels + at / (kRows * kColumns) % kChannels;
      for (int64_t i = begin[0]; i < end[0]; ++i)
        for (int64_t j = begin[1]; j < end[1]; ++j) {
          const double value = x.get((plane * 10 + i) * 12 + j);
          if (value > largest || std::isnan(value)) largest = value;
        }
      expected.push_back(largest);
    }
    run_op("MaxRoiPool", {{"pooled_shape", Dims{kRows, kColumns}}, {"spatial_scale", scale}},
           {&x, &rois}, {&y}, [&] { expect_close(y, expected, 0, 0, "MaxRoiPool"); });
  }
}

TEST(Regions, NameAMissingImage) {
  Tensor x = Tensor::random(DType::Float32, {1, 1, 4, 4}, 1), y(DType::Float32, {1, 1, 1, 1});
  Tensor rois = Tensor::of(DType::Float32, {1, 5}, {1, 0, 0, 1, 1});
  const Attrs attrs{{"pooled_shape", Dims{1, 1}}, {"spatial_scale", 1.0}};
  const std::vector<Tensor*> in{&x, &rois}, out{&y};
  for (const KernelDef* def : kernels_of("MaxRoiPool"))
    EXPECT_THROW(
        run_kernel(*def, facts_of({node_of("MaxRoiPool", attrs, in, out)}, in, out), in, out),
        Error)
        << def->name;
}

}  // namespace
}  // namespace ortmodule::testing
