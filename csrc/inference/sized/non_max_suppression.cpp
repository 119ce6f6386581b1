// NonMaxSuppression: of the boxes of each batch and class, in the order of their scores, those that
// overlap no chosen one by more than the threshold: int64[chosen, 3] of batch, class and box.
// Method: greedy; of equal scores the lower index first. Areas are those of stock onnxruntime.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "base/error.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

struct Shape {
  int64_t batches = 0, classes = 0, boxes = 0;

  explicit Shape(const SizedCall& call) {
    const HostTensorView &box = call.operand(0), &score = call.operand(1);
    const Sizes &b = box.sizes, &s = score.sizes;
    ORTM_CHECK(box.dtype == DType::Float32 && score.dtype == DType::Float32 && b.size() == 3 &&
                   s.size() == 3 && b[2] == 4 && b[0] == s[0] && b[1] == s[2],
               "[NonMaxSuppression] boxes must be float32 [batches, boxes, 4] and scores float32 ",
               "[batches, classes, boxes], but found ranks ", b.size(), " and ", s.size());
    batches = s[0];
    classes = s[1];
    boxes = s[2];
  }
};

// By corners: low and high, each of two axes.
struct Box {
  std::array<float, 2> low, high;

  Box(const float* x, bool by_center) {
    for (size_t d = 0; d < 2; ++d) {
      // [y1, x1, y2, x2] in any order of corners, or [x, y, width, height] of the center
      const float a = by_center ? x[d] - x[2 + d] / 2 : x[d];
      const float b = by_center ? x[d] + x[2 + d] / 2 : x[2 + d];
      low[d] = std::min(a, b);
      high[d] = std::max(a, b);
    }
  }
  float area() const { return (high[0] - low[0]) * (high[1] - low[1]); }
};

bool overlaps(const Box& a, const Box& b, float threshold) {
  float common = 1;
  for (size_t d = 0; d < 2; ++d) {
    const float length = std::min(a.high[d], b.high[d]) - std::max(a.low[d], b.low[d]);
    if (!(length > 0)) return false;
    common *= length;
  }
  const float first = a.area(), second = b.area(), all = first + second - common;
  if (!(first > 0) || !(second > 0) || !(all > 0)) return false;
  return common / all > threshold;
}

int64_t most_per_class(const SizedCall& call, const Shape& shape) {
  return std::clamp<int64_t>(call.integer(2, 0), 0, shape.boxes);
}

void run_non_max_suppression(const SizedCall& call) {
  const Shape shape(call);
  const int64_t most = most_per_class(call, shape);
  const float iou = call.number(3, 0), least = call.number(4, 0);
  ORTM_CHECK(iou >= 0 && iou <= 1,
             "[NonMaxSuppression] iou_threshold must be from 0 to 1, but found ", iou);
  const bool by_center = call.attrs().integer("center_point_box", 0) != 0;
  std::vector<int64_t> chosen, order;
  std::vector<Box> taken;
  for (int64_t pair = 0; most > 0 && pair < shape.batches * shape.classes; ++pair) {
    const float* scores = call.data<float>(1) + pair * shape.boxes;
    const float* boxes = call.data<float>(0) + pair / shape.classes * shape.boxes * 4;
    order.clear();
    taken.clear();
    for (int64_t i = 0; i < shape.boxes; ++i)
      if (!call.has(4) || scores[i] > least) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
    for (int64_t i : order) {
      if (static_cast<int64_t>(taken.size()) == most) break;
      const Box box(boxes + 4 * i, by_center);
      if (std::any_of(taken.begin(), taken.end(),
                      [&](const Box& other) { return overlaps(box, other, iou); }))
        continue;
      taken.push_back(box);
      for (int64_t number : {pair / shape.classes, pair % shape.classes, i})
        chosen.push_back(number);
    }
  }
  const auto count = static_cast<int64_t>(chosen.size()) / 3;
  std::copy(chosen.begin(), chosen.end(), call.result<int64_t>(DType::Int64, {count, 3}));
}

std::vector<SizedResult> most_non_max_suppression(const SizedCall& call) {
  const Shape shape(call);
  const bool is_known = call.has(2) && call.operand(2).data;
  const int64_t each = !call.has(2) ? 0 : is_known ? most_per_class(call, shape) : shape.boxes;
  return {{DType::Int64, {shape.batches * shape.classes * each, 3}}};
}

const SizedRegistrar kOp({"NonMaxSuppression", run_non_max_suppression, most_non_max_suppression});

}  // namespace
}  // namespace ortmodule
