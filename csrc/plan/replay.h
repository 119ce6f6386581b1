// The one model of the peak: bytes of a plan's buffers over its steps.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ortmodule {

/// How a run uses its buffers.
enum class ReplayMode : uint8_t {
  Once,         // backward runs once: a saved segment goes back after its last use
  RetainGraph,  // saved segments outlive their last use
  Accumulate,   // gradients are added to existing ones and freed when their range is done
  NoGradients,  // as Once, without the gradients
};

struct ReplayFigures {
  int64_t peak_bytes = 0;
  int peak_step = 0;  // the first one that reaches it
  int64_t forward_peak_bytes = 0;
};

/// Bytes of engine-owned buffers alive at each step.
std::vector<int64_t> live_bytes(const Plan& plan, ReplayMode mode);

/// The peak of those bytes and what the kernels' libraries allocate beside them.
ReplayFigures replay(const Plan& plan, ReplayMode mode);

/// Bytes of the gradients that one backward pass hands to the caller.
int64_t gradient_bytes(const Plan& plan);

/// Bytes of the outputs that forward hands to the caller.
int64_t output_bytes(const Plan& plan);

/// Bytes that stay between forward and backward.
int64_t saved_bytes(const Plan& plan);

}  // namespace ortmodule
