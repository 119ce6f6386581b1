#include "plan/replay.h"

namespace ortmodule {
namespace {

/// By buffer: the last step of backward that has it, if it is freed with the range of its gradient.
std::vector<int> ends_of_ranges(const Plan& plan) {
  std::vector<int> last_of_range(static_cast<size_t>(plan.ranges), plan.forward_steps - 1);
  for (size_t r = 0, s = static_cast<size_t>(plan.forward_steps); r < last_of_range.size(); ++r) {
    while (s < plan.steps.size() && plan.steps[s].range <= static_cast<int>(r)) ++s;
    last_of_range[r] = static_cast<int>(s) - 1;
  }
  std::vector<int> ends(plan.buffers.size(), -1);
  for (const PlannedGradient& gradient : plan.gradients) {
    if (gradient.tensor < 0) continue;
    const PlannedTensor& tensor = plan.tensors[static_cast<size_t>(gradient.tensor)];
    const int buffer = plan.storages[static_cast<size_t>(tensor.storage)].buffer;
    if (buffer >= 0)
      ends[static_cast<size_t>(buffer)] = last_of_range[static_cast<size_t>(gradient.range)];
  }
  return ends;
}

}  // namespace

std::vector<int64_t> live_bytes(const Plan& plan, ReplayMode mode) {
  const int steps = static_cast<int>(plan.steps.size());
  std::vector<int64_t> live(plan.steps.size() + 1, 0);  // first the changes by step
  std::vector<int> range_ends;
  if (mode == ReplayMode::Accumulate) range_ends = ends_of_ranges(plan);
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const PlannedBuffer& buffer = plan.buffers[b];
    if (!buffer.owned()) continue;
    if (buffer.kind == BufferKind::Gradient && mode == ReplayMode::NoGradients) continue;
    int last = buffer.last_step;
    if (buffer.kind == BufferKind::Saved && mode == ReplayMode::RetainGraph) last = steps - 1;
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
