// Gradients are handed to autograd range by range. What a range has computed waits for its end, so
// where gradients are added to existing ones, many small ranges hold less; each costs an autograd
// node. A first number follows from the gradients' bytes and is doubled as long as that lowers the
// peak by more than the nodes are worth: without recomputation that lies before most gradients, and
// few ranges do.
#include "plan/cut_ranges.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/replay.h"

namespace ortmodule {
namespace {

class RangeCutter {
 public:
  explicit RangeCutter(Plan& plan)
      : plan_(plan),
        last_touched_(plan.storages.size(), -1),
        last_read_(plan.graph->inputs().size(), -1) {
    for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
      const PlannedStep& step = plan.steps[static_cast<size_t>(s)];
      for (const std::vector<int>* tensors : {&step.in, &step.out})
        for (int tensor : *tensors)
          if (tensor >= 0) last_touched_[static_cast<size_t>(storage_index(tensor))] = s;
    }
    for (size_t i = 0; i < plan.storages.size(); ++i)
      if (plan.storages[i].role == PlannedStorage::Role::Argument)
        last_read_[static_cast<size_t>(plan.storages[i].index)] = last_touched_[i];
    for (PlannedGradient& gradient : plan.gradients) {
      if (gradient.tensor < 0) continue;
      by_completion_.push_back(&gradient);
      total_bytes_ += bytes_of(gradient);
    }
    std::stable_sort(by_completion_.begin(), by_completion_.end(),
                     [&](const PlannedGradient* a, const PlannedGradient* b) {
                       return completed_at(*a) < completed_at(*b);
                     });
  }

  void cut() {
    constexpr int64_t kFewest = 16, kMost = 64, kRangeBytes = 4 << 20;
    constexpr int64_t kNodeBytes = 4 << 10;  // a node costs about 6 us, half a tiny layer
    const int64_t first = std::clamp<int64_t>(total_bytes_ / kRangeBytes, 1, kFewest);
    cut_into(first);
    int64_t best = first;
    int64_t least_bytes = accumulating_peak();
    for (int64_t wanted = 2 * first; wanted <= kMost; wanted *= 2) {
      cut_into(wanted);
      const int64_t bytes = accumulating_peak();
      const int64_t for_nodes = std::min(kNodeBytes * (wanted - best), least_bytes / 20);
      const int64_t least_gain = std::max(least_bytes / 100, for_nodes);
      if (least_bytes - bytes <= least_gain) continue;
      least_bytes = bytes;
      best = wanted;
    }
    cut_into(best);
  }

  void cut_as(const Plan& base) {
    plan_.ranges = base.ranges;
    for (PlannedGradient& gradient : plan_.gradients)
      for (const PlannedGradient& known : base.gradients)
        if (known.input == gradient.input) gradient.range = known.range;
    number_steps();
  }

 private:
  int64_t accumulating_peak() const { return replay(plan_, ReplayMode::Accumulate).peak_bytes; }

  int storage_index(int tensor) const { return plan_.tensors[static_cast<size_t>(tensor)].storage; }

  int64_t bytes_of(const PlannedGradient& gradient) const {
    return plan_.storages[static_cast<size_t>(storage_index(gradient.tensor))].bytes;
  }

  /// Whoever receives a gradient may change or free it, while a sum may grow in its buffer until
  /// later, or another value's gradient be made of it; and may step an optimizer, while its
  /// parameter is read for the gradient that is passed on.
  int completed_at(const PlannedGradient& gradient) const {
    return std::max(last_touched_[static_cast<size_t>(storage_index(gradient.tensor))],
                    last_read_[static_cast<size_t>(gradient.input)]);
  }

  /// At most `wanted` ranges: a gradient larger than a share leaves numbers out, which are closed
  /// up.
  void cut_into(int64_t wanted) {
    int64_t sum = 0;
    int64_t last_share = -1;
    int range = -1;
    for (PlannedGradient* gradient : by_completion_) {
      const int64_t share = std::min(wanted - 1, sum * wanted / std::max<int64_t>(total_bytes_, 1));
      if (share != last_share) ++range;
      last_share = share;
      gradient->range = range;
      sum += bytes_of(*gradient);
    }
    plan_.ranges = std::max(range + 1, 1);
    number_steps();
  }

  void number_steps() {
    std::vector<int> last(static_cast<size_t>(plan_.ranges), plan_.forward_steps - 1);
    for (const PlannedGradient* gradient : by_completion_) {
      int& end = last[static_cast<size_t>(gradient->range)];
      end = std::max(end, completed_at(*gradient));
    }
    for (size_t r = 1; r < last.size(); ++r) last[r] = std::max(last[r], last[r - 1]);
    int range = 0;
    for (int s = plan_.forward_steps; s < static_cast<int>(plan_.steps.size()); ++s) {
      while (range + 1 < plan_.ranges && s > last[static_cast<size_t>(range)]) ++range;
      plan_.steps[static_cast<size_t>(s)].range = range;
    }
  }

  Plan& plan_;
  std::vector<int> last_touched_;                // by storage: the last step that uses it
  std::vector<int> last_read_;                   // by graph input: the same
  std::vector<PlannedGradient*> by_completion_;  // those that flow
  int64_t total_bytes_ = 0;
};

}  // namespace

void cut_ranges(Plan& plan, const Plan* base) {
  RangeCutter cutter(plan);
  if (base)
    cutter.cut_as(*base);
  else
    cutter.cut();
}

}  // namespace ortmodule
