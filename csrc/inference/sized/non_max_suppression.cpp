// NonMaxSuppression: of the boxes of each batch and class, in the order of their scores, those that
// overlap no chosen one by more than the threshold: int64[chosen, 3] of batch, class and box.
// Method: greedy; of equal scores the lower index first. Boxes come off a heap, since a limit often
// ends the search early, and are compared with a block of chosen ones at a time. Areas are those of
// stock onnxruntime.
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

// The boxes that were chosen, in blocks.
class Chosen {
 public:
  int64_t size() const { return size_; }
  void clear() { size_ = 0; }

  void add(const Box& box) {
    const size_t place = static_cast<size_t>(size_) % kBlock;
    if (static_cast<size_t>(size_++) / kBlock == blocks_.size()) blocks_.emplace_back();
    Block& block = blocks_[static_cast<size_t>(size_ - 1) / kBlock];
    if (place == 0) block = Block();
    for (size_t d = 0; d < 2; ++d) {
      block.low[d][place] = box.low[d];
      block.high[d][place] = box.high[d];
    }
    block.area[place] = box.area();
  }

  bool any_overlaps(const Box& box, float threshold) const {
    const auto count = (static_cast<size_t>(size_) + kBlock - 1) / kBlock;
    for (size_t i = 0; i < count; ++i)
      if (blocks_[i].any_overlaps(box, threshold)) return true;
    return false;
  }

 private:
  static constexpr size_t kBlock = 16;

  // Places without a box have no area. The loops have no branches, so that they become vectors.
  struct Block {
    std::array<std::array<float, kBlock>, 2> low{}, high{};
    std::array<float, kBlock> area{};

    bool any_overlaps(const Box& box, float threshold) const {
      std::array<float, kBlock> common;
      int found = 0;
      for (size_t i = 0; i < kBlock; ++i) {
        const float a = std::min(box.high[0], high[0][i]) - std::max(box.low[0], low[0][i]);
        const float b = std::min(box.high[1], high[1][i]) - std::max(box.low[1], low[1][i]);
        common[i] = (a > 0 ? a : 0.0f) * (b > 0 ? b : 0.0f);
        found |= common[i] > 0 ? 1 : 0;
      }
      if (!found) return false;
      const float own = box.area();
      if (!(own > 0)) return false;
      found = 0;
      for (size_t i = 0; i < kBlock; ++i) {
        const float all = own + area[i] - common[i];
        const int is_box = area[i] > 0 ? 1 : 0, is_area = all > 0 ? 1 : 0;
        found |= is_box & is_area & (common[i] / all > threshold ? 1 : 0);
      }
      return found != 0;
    }
  };

  std::vector<Block> blocks_;
  int64_t size_ = 0;
};

struct Candidate {
  float score;
  int64_t box;
};

// Whether b is chosen before a.
bool is_after(const Candidate& a, const Candidate& b) {
  return a.score < b.score || (a.score == b.score && a.box > b.box);
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
  std::vector<int64_t> chosen;
  std::vector<Candidate> candidates;
  Chosen taken;
  for (int64_t pair = 0; most > 0 && pair < shape.batches * shape.classes; ++pair) {
    const float* scores = call.data<float>(1) + pair * shape.boxes;
    const float* boxes = call.data<float>(0) + pair / shape.classes * shape.boxes * 4;
    candidates.clear();
    taken.clear();
    for (int64_t i = 0; i < shape.boxes; ++i)
      if (!call.has(4) || scores[i] > least) candidates.push_back({scores[i], i});
    std::make_heap(candidates.begin(), candidates.end(), is_after);
    while (!candidates.empty() && taken.size() < most) {
      std::pop_heap(candidates.begin(), candidates.end(), is_after);
      const int64_t i = candidates.back().box;
      candidates.pop_back();
      const Box box(boxes + 4 * i, by_center);
      if (taken.any_overlaps(box, iou)) continue;
      taken.add(box);
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
