// A gradient stays allocated until the end of its range. Where autograd accumulates it into an
// existing one, more and smaller ranges therefore lower the peak, but each range costs an autograd
// node. The number of ranges starts from the total gradient bytes and doubles as long as the peak
// falls by more than the extra nodes are worth. Without recomputation the peak usually comes before
// most gradients exist, and few ranges suffice.
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
    for (int s = 0; s < plan.step_count(); ++s) {
      const PlannedStep& step = plan.step(s);
      for (const TensorList* tensors : {&step.in, &step.out})
        for (TensorId tensor : *tensors)
          if (tensor) last_touched_[plan.tensors[tensor].storage] = s;
    }
    for (StorageId id : plan.storages.ids())
      if (plan.storages[id].role == PlannedStorage::Role::Argument)
        last_read_[plan.storages[id].index] = last_touched_[id];
    for (PlannedGradient& gradient : plan.gradients) {
      if (!gradient.tensor) continue;
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
    constexpr int64_t kNodeBytes = 4 << 10;  // memory worth one node of about 6 us
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

  int64_t bytes_of(const PlannedGradient& gradient) const {
    return plan_.storage_of(gradient.tensor).bytes;
  }

  /// The step after which a gradient may be returned. Its receiver may modify or free it, so no
  /// later step may read it or accumulate into it. The receiver may also run an optimizer, so no
  /// later step may read the parameter.
  int completed_at(const PlannedGradient& gradient) const {
    return std::max(last_touched_[plan_.tensors[gradient.tensor].storage],
                    last_read_[gradient.input]);
  }

  /// Makes `wanted` ranges, or fewer where one gradient is larger than the share of a range.
  void cut_into(int64_t wanted) {
    int64_t sum = 0;
    int64_t last_share = -1;
    size_t ranges = 0;
    for (PlannedGradient* gradient : by_completion_) {
      const int64_t share = std::min(wanted - 1, sum * wanted / std::max<int64_t>(total_bytes_, 1));
      if (share != last_share) ++ranges;
      last_share = share;
      gradient->range = ranges - 1;
      sum += bytes_of(*gradient);
    }
    plan_.ranges = std::max<size_t>(ranges, 1);
    number_steps();
  }

  void number_steps() {
    std::vector<int> last(plan_.ranges, plan_.forward_steps - 1);
    for (const PlannedGradient* gradient : by_completion_) {
      int& end = last[gradient->range];
      end = std::max(end, completed_at(*gradient));
    }
    for (size_t r = 1; r < last.size(); ++r) last[r] = std::max(last[r], last[r - 1]);
    size_t range = 0;
    for (int s = plan_.forward_steps; s < plan_.step_count(); ++s) {
      while (range + 1 < plan_.ranges && s > last[range]) ++range;
      plan_.step(s).range = range;
    }
  }

  Plan& plan_;
  IdVector<StorageId, int> last_touched_;        // by storage: the last step that uses it
  std::vector<int> last_read_;                   // by graph input: the last step that reads it
  std::vector<PlannedGradient*> by_completion_;  // gradients, earliest first
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
