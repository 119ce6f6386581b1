// CropAndResize: boxes of images [y1, x1, y2, x2] as shares of their sizes, in one size, whose
// corners are those of the boxes.
#include <cmath>

#include "base/error.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

/// Between which elements of an axis of the image one of the crop lies, and how far from the first.
struct CropPlace {
  int64_t before = 0, behind = 0;
  float share = 0;
  bool inside = false;
};

std::vector<CropPlace> crop_places(float begin, float end, int64_t size, int64_t cropped,
                                   bool nearest) {
  const auto last = static_cast<float>(size - 1);
  const float step = cropped > 1 ? (end - begin) * last / static_cast<float>(cropped - 1) : 0;
  std::vector<CropPlace> places;
  for (int64_t i = 0; i < cropped; ++i) {
    const float at =
        cropped > 1 ? begin * last + static_cast<float>(i) * step : 0.5f * (begin + end) * last;
    CropPlace& place = places.emplace_back();
    place.inside = at >= 0 && at <= last;
    if (!place.inside) continue;
    place.before = static_cast<int64_t>(nearest ? std::round(at) : std::floor(at));
    place.behind = nearest ? place.before : std::min(place.before + 1, size - 1);
    place.share = nearest ? 0 : at - static_cast<float>(place.before);
  }
  return places;
}

// A row of a crop.
void sample_row(const float* image, int64_t width, const CropPlace& row,
                const std::vector<CropPlace>& columns, float outside, float* to) {
  const float *above = image + row.before * width, *below = image + row.behind * width;
  for (const CropPlace& column : columns) {
    const auto mixed = [&](const float* line) {
      return line[column.before] + (line[column.behind] - line[column.before]) * column.share;
    };
    const float top = row.inside && column.inside ? mixed(above) : outside;
    *to++ = row.inside && column.inside ? top + (mixed(below) - top) * row.share : outside;
  }
}

Sizes crop_sizes(const SizedCall& call) {
  const HostTensorView& sizes = call.operand(3);
  ORTM_CHECK(element_count(sizes.sizes) == 2, "[run] crop_size must have two elements");
  const auto* size = call.data<int32_t>(3);
  ORTM_CHECK(size[0] > 0 && size[1] > 0, "[run] crop_size must be positive, but found ", size[0],
             " and ", size[1]);
  return {call.operand(1).sizes[0], call.operand(0).sizes[1], size[0], size[1]};
}

void run_crop_and_resize(const SizedCall& call) {
  const Sizes &image = call.operand(0).sizes, sizes = crop_sizes(call);
  ORTM_CHECK(element_count(call.operand(2).sizes) == sizes[0],
             "[run] there must be an image for each box");
  const bool nearest = call.attrs().string("mode") == "nearest";
  const auto outside = static_cast<float>(call.attrs().number("extrapolation_value"));
  auto* to = call.result<float>(DType::Float32, sizes);
  for (int64_t box = 0; box < sizes[0]; ++box) {
    const float* place = call.data<float>(1) + box * 4;
    const int32_t number = call.data<int32_t>(2)[box];
    ORTM_CHECK(number >= 0 && number < image[0], "[run] an image must be within ", image[0],
               ", but found ", number);
    const auto rows = crop_places(place[0], place[2], image[2], sizes[2], nearest),
               columns = crop_places(place[1], place[3], image[3], sizes[3], nearest);
    for (int64_t channel = 0; channel < sizes[1]; ++channel) {
      const float* from = call.data<float>(0) + (number * image[1] + channel) * image[2] * image[3];
      for (const CropPlace& row : rows) {
        sample_row(from, image[3], row, columns, outside, to);
        to += sizes[3];
      }
    }
  }
}

const SizedRegistrar kCropAndResize({"CropAndResize", run_crop_and_resize, nullptr});

}  // namespace
}  // namespace ortmodule
