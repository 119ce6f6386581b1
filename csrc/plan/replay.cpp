#include "plan/replay.h"

#include <algorithm>

namespace ortmodule {
namespace {

/// By buffer: for gradients, the last step of the range that returns them; else -1.
IdVector<BufferId, int> ends_of_ranges(const Plan& plan) {
  std::vector<int> last_of_range(plan.ranges, plan.forward_steps - 1);
  int s = plan.forward_steps;
  for (size_t r = 0; r < plan.ranges; ++r) {
    while (s < plan.step_count() && plan.step(s).range <= r) ++s;
    last_of_range[r] = s - 1;
  }
  IdVector<BufferId, int> ends(plan.buffers.size(), -1);
  for (const PlannedGradient& gradient : plan.gradients) {
    if (!gradient.tensor) continue;
    const BufferId buffer = plan.storage_of(gradient.tensor).buffer;
    if (buffer) ends[buffer] = last_of_range[gradient.range];
  }
  return ends;
}

}  // namespace

std::vector<int64_t> live_bytes(const Plan& plan, ReplayMode mode) {
  std::vector<int64_t> live(plan.steps.size() + 1, 0);  // first the changes by step
  IdVector<BufferId, int> range_ends;
  if (mode == ReplayMode::Accumulate) range_ends = ends_of_ranges(plan);
  for (BufferId b : plan.buffers.ids()) {
    const PlannedBuffer& buffer = plan.buffers[b];
    if (!buffer.owned() || buffer.kind == BufferKind::Host) continue;
    if (buffer.kind == BufferKind::Gradient && mode == ReplayMode::NoGradients) continue;
    int last = buffer.last_step;
    if (buffer.kind == BufferKind::Saved && mode == ReplayMode::RetainGraph)
      last = plan.step_count() - 1;
    if (!range_ends.empty() && range_ends[b] >= 0) last = range_ends[b];
    if (buffer.first_step > last) continue;
    live[static_cast<size_t>(buffer.first_step)] += buffer.bytes;
    live[static_cast<size_t>(last) + 1] -= buffer.bytes;
  }
  live.pop_back();
  for (size_t s = 1; s < live.size(); ++s) live[s] += live[s - 1];
  return live;
}

ReplayFigures replay(const Plan& plan, ReplayMode mode) {
  const std::vector<int64_t> live = live_bytes(plan, mode);
  ReplayFigures figures;
  for (size_t s = 0; s < live.size(); ++s) {
    const int64_t bytes = live[s] + plan.steps[s].library_bytes;
    if (bytes > figures.peak_bytes) {
      figures.peak_bytes = bytes;
      figures.peak_step = static_cast<int>(s);
    }
    if (static_cast<int>(s) < plan.forward_steps) figures.forward_peak_bytes = figures.peak_bytes;
  }
  return figures;
}

std::vector<int64_t> grown_peaks(const Plan& plan, ReplayMode mode,
                                 std::span<const double> growths) {
  const std::vector<int64_t> all = live_bytes(plan, mode);
  const std::vector<int64_t> others = live_bytes(plan, ReplayMode::NoGradients);
  std::vector<int64_t> peaks;
  for (double growth : growths) {
    int64_t peak = 0;
    for (size_t s = 0; s < all.size(); ++s) {
      const auto changing = static_cast<double>(others[s] + plan.steps[s].library_bytes);
      peak = std::max(peak, all[s] - others[s] + static_cast<int64_t>(growth * changing));
    }
    peaks.push_back(peak);
  }
  return peaks;
}

int64_t output_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.kind == BufferKind::Output) bytes += buffer.bytes;
  return bytes;
}

int64_t gradient_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.kind == BufferKind::Gradient) bytes += buffer.bytes;
  return bytes;
}

int64_t host_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.kind == BufferKind::Host) bytes += buffer.bytes;
  return bytes;
}

int64_t saved_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers) {
    const bool early =
        buffer.kind == BufferKind::Gradient && buffer.first_step < plan.forward_steps;
    if (buffer.kind == BufferKind::Saved || early) bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace ortmodule
