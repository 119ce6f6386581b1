// How long the stages of a session take.
#pragma once

#include <chrono>
#include <cstddef>

namespace ortmodule {

/// Milliseconds per stage of building the session and its plans.
struct StageTimes {
  double optimize_forward_ms = 0;
  double gradient_ms = 0;
  double optimize_joint_ms = 0;
  double lower_ms = 0;
  double optimize_memory_ms = 0;  // deciding what is recomputed
  double plan_ms = 0;             // sum over all plans
  size_t plans = 0;               // made to be run, without backward variants
};

/// Adds the time of its scope to a stage.
class StageTimer {
 public:
  explicit StageTimer(double& total_ms) : total_ms_(total_ms) {}
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;
  ~StageTimer() {
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    total_ms_ += std::chrono::duration<double, std::milli>(elapsed).count();
  }

 private:
  double& total_ms_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ortmodule
