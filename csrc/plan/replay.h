// Simulates the allocations of a plan. All predicted peaks come from here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace ortmodule {

/// How a run uses its buffers.
enum class ReplayMode : uint8_t {
  Once,         // backward runs once; a saved segment is freed after its last use
  RetainGraph,  // backward can run again; saved segments are kept
  Accumulate,   // gradients are accumulated into existing ones, and freed when their range ends
  NoGradients,  // like Once, but gradients are not counted
};

struct ReplayFigures {
  int64_t peak_bytes = 0;
  int peak_step = 0;  // the first one that reaches it
  int64_t forward_peak_bytes = 0;
};

/// Bytes of the engine's buffers that are allocated during each step.
std::vector<int64_t> live_bytes(const Plan& plan, ReplayMode mode);

/// The peak of those bytes plus the scratch memory that libraries allocate in a step.
ReplayFigures replay(const Plan& plan, ReplayMode mode);

/// By growth: the peak if everything but gradients took so many times its bytes, as in larger
/// shapes.
std::vector<int64_t> grown_peaks(const Plan& plan, ReplayMode mode,
                                 std::span<const double> growths);

/// Bytes of the gradients that one backward pass returns.
int64_t gradient_bytes(const Plan& plan);

/// Bytes of the outputs that forward returns.
int64_t output_bytes(const Plan& plan);

/// Bytes of saved activations in memory of the host.
int64_t host_bytes(const Plan& plan);

/// Bytes of the device that stay allocated between forward and backward.
int64_t saved_bytes(const Plan& plan);

}  // namespace ortmodule
