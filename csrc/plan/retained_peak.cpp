#include "plan/retained_peak.h"

#include <algorithm>

namespace ortmodule {

int64_t retained_peak_bytes(const Plan& plan) {
  int64_t peak = 0, alive = 0;
  for (const PlannedStep& step : plan.steps) {
    for (int b : step.allocate) alive += plan.buffers[static_cast<size_t>(b)].bytes;
    peak = std::max(peak, alive + step.library_bytes);
    for (int b : step.release) {
      const PlannedBuffer& buffer = plan.buffers[static_cast<size_t>(b)];
      if (buffer.kind != BufferKind::Saved) alive -= buffer.bytes;
    }
  }
  return peak;
}

int64_t accumulating_peak_bytes(const Plan& plan) {
  std::vector<int64_t> completed(static_cast<size_t>(plan.ranges), 0);  // bytes by range
  for (const PlannedGradient& gradient : plan.gradients) {
    if (gradient.tensor < 0) continue;
    const PlannedTensor& tensor = plan.tensors[static_cast<size_t>(gradient.tensor)];
    const int buffer = plan.storages[static_cast<size_t>(tensor.storage)].buffer;
    if (buffer >= 0)
      completed[static_cast<size_t>(gradient.range)] +=
          plan.buffers[static_cast<size_t>(buffer)].bytes;
  }
  int64_t peak = 0, alive = 0;
  int range = 0;
  for (const PlannedStep& step : plan.steps) {
    for (; range < step.range; ++range) alive -= completed[static_cast<size_t>(range)];
    for (int b : step.allocate) alive += plan.buffers[static_cast<size_t>(b)].bytes;
    peak = std::max(peak, alive + step.library_bytes);
    for (int b : step.release) alive -= plan.buffers[static_cast<size_t>(b)].bytes;
  }
  return peak;
}

int64_t gradient_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.kind == BufferKind::Gradient) bytes += buffer.bytes;
  return bytes;
}

}  // namespace ortmodule
