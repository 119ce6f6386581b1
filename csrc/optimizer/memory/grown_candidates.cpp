#include "optimizer/memory/grown_candidates.h"

#include <algorithm>
#include <utility>

#include "optimizer/memory/budget.h"

namespace ortmodule {
namespace {

class GrownChooser {
 public:
  GrownChooser(const MemoryChoice& choice, const OtherShapes& shapes) : shapes_(shapes) {
    for (const auto* points : {&choice.frontier, &choice.grown})
      for (const FrontierPoint& point : *points) {
        const double expected = shapes.error * grown_peak(point.figures, shapes.growth);
        all_.push_back({&point, static_cast<int64_t>(expected), 0});
      }
    std::ranges::sort(all_, {}, [](const GrownCandidate& candidate) {
      return std::pair(candidate.expected_bytes, candidate.point->figures.time_us);
    });
  }

  GrownCandidate run() const {
    std::vector<GrownCandidate> ready;
    for (const GrownCandidate& candidate : all_)
      if (shapes_.is_ready(candidate.point->decisions)) ready.push_back(candidate);
    if (ready.empty()) return fastest_of(all_);
    const GrownCandidate taken = fastest_of(ready);
    return taken.peak_bytes > shapes_.budget_bytes ? fastest_of(all_) : faster_than(taken);
  }

 private:
  static double time_of(const GrownCandidate& candidate) {
    return candidate.point->figures.time_us;
  }

  GrownCandidate with_peak(GrownCandidate candidate) const {
    candidate.peak_bytes = shapes_.peak_bytes(candidate.point->decisions);
    return candidate;
  }

  GrownCandidate fastest_of(const std::vector<GrownCandidate>& candidates) const {
    std::vector<GrownCandidate> frontier;
    for (const GrownCandidate& candidate : candidates)
      if (frontier.empty() || time_of(candidate) < time_of(frontier.back()))
        frontier.push_back(candidate);
    const BudgetCandidates searched{frontier.size(),
                                    [&](size_t i) { return frontier[i].expected_bytes; },
                                    [&](size_t i) { return with_peak(frontier[i]).peak_bytes; },
                                    [&](size_t i) { return time_of(frontier[i]); }, true};
    return with_peak(frontier[fastest_that_fits(searched, shapes_.budget_bytes)]);
  }

  /// `taken`, or a candidate that saves enough time to be lowered, if there is one that fits.
  GrownCandidate faster_than(const GrownCandidate& taken) const {
    const auto expected = static_cast<double>(std::max<int64_t>(taken.expected_bytes, 1));
    const double correction = static_cast<double>(taken.peak_bytes) / expected;
    const GrownCandidate* best = nullptr;
    for (const GrownCandidate& candidate : all_) {
      const double peak = correction * static_cast<double>(candidate.expected_bytes);
      if (peak > static_cast<double>(shapes_.budget_bytes)) break;
      if (!best || time_of(candidate) < time_of(*best)) best = &candidate;
    }
    if (!best || time_of(*best) > (1.0 - kLeastSaving) * time_of(taken)) return taken;
    const GrownCandidate faster = with_peak(*best);
    return faster.peak_bytes <= shapes_.budget_bytes ? faster : taken;
  }

  const OtherShapes& shapes_;
  std::vector<GrownCandidate> all_;  // expected peaks ascend
};

}  // namespace

GrownCandidate fastest_grown(const MemoryChoice& choice, const OtherShapes& shapes) {
  return GrownChooser(choice, shapes).run();
}

}  // namespace ortmodule
