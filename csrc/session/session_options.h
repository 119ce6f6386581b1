// How a piece is compiled and planned.
#pragma once

#include <cstdint>
#include <functional>

#include "optimizer/memory/memory_optimizer.h"
#include "optimizer/pass.h"
#include "plan/placement.h"

namespace ortmodule {

/// Every option is in exactly one of these structs, which are passed on whole.
struct SessionOptions {
  OptimizerOptions optimizer;  // with the device, and whether the piece trains
  MemoryOptions memory;
  int64_t plan_cache_bytes = int64_t{192} << 20;  // see plans_within
  size_t fewest_plans = 64;                       // that are kept whatever their bytes
  PlacementOptions placement = {};                // of plans without backward
  /// False: the optimized graphs are freed when they are lowered, and cannot be shown.
  bool keep_graphs = true;
  /// Called before a plan is made; may throw to prevent it.
  std::function<void()> before_plan = {};
  /// The number of threads that a plan made now is for; null: one.
  std::function<int64_t()> threads = {};

  Device device() const { return optimizer.device; }
  /// False: forward only, nothing is saved.
  bool training() const { return optimizer.training; }
};

}  // namespace ortmodule
