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
  int64_t peak = 0, alive = 0, in_range = 0;
  int range = 0;
  for (const PlannedStep& step : plan.steps) {
    if (step.range != range) {
      alive -= in_range;
      in_range = 0;
      range = step.range;
    }
    for (int b : step.allocate) {
      const PlannedBuffer& buffer = plan.buffers[static_cast<size_t>(b)];
      alive += buffer.bytes;
      if (buffer.kind == BufferKind::Gradient) in_range += buffer.bytes;
    }
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
