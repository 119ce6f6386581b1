// CropAndResize: boxes of images [y1, x1, y2, x2] as shares of their sizes, in one size, whose
// corners are those of the boxes.
#include <cmath>

#include "base/error.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

/// Places of the elements along an axis of a crop in the image.
struct CropAxis {
  float begin = 0, end = 0;
  int64_t size = 0, cropped = 0;

  float place(int64_t i) const {
    const auto last = static_cast<float>(size - 1);
    if (cropped == 1) return 0.5f * (begin + end) * last;
    const float step = (end - begin) * last / static_cast<float>(cropped - 1);
    return begin * last + static_cast<float>(i) * step;
  }
  bool has(float at) const { return at >= 0 && at <= static_cast<float>(size - 1); }
};

float sampled(const float* image, const CropAxis& rows, const CropAxis& columns, float y, float x,
              bool nearest) {
  const int64_t width = columns.size;
  if (nearest)
    return image[static_cast<int64_t>(std::round(y)) * width + static_cast<int64_t>(std::round(x))];
  const auto top = static_cast<int64_t>(std::floor(y)), left = static_cast<int64_t>(std::floor(x));
  const int64_t bottom = std::min(top + 1, rows.size - 1), right = std::min(left + 1, width - 1);
  const float down = y - static_cast<float>(top), along = x - static_cast<float>(left);
  const auto mixed = [&](int64_t row) {
    const float a = image[row * width + left], b = image[row * width + right];
    return a + (b - a) * along;
  };
  const float above = mixed(top);
  return above + (mixed(bottom) - above) * down;
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
    const CropAxis rows{place[0], place[2], image[2], sizes[2]},
        columns{place[1], place[3], image[3], sizes[3]};
    for (int64_t channel = 0; channel < sizes[1]; ++channel) {
      const float* from = call.data<float>(0) + (number * image[1] + channel) * image[2] * image[3];
      for (int64_t i = 0; i < sizes[2]; ++i)
        for (int64_t j = 0; j < sizes[3]; ++j) {
          const float y = rows.place(i), x = columns.place(j);
          *to++ =
              rows.has(y) && columns.has(x) ? sampled(from, rows, columns, y, x, nearest) : outside;
        }
    }
  }
}

const SizedRegistrar kCropAndResize({"CropAndResize", run_crop_and_resize, nullptr});

}  // namespace
}  // namespace ortmodule
