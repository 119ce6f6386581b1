// How a piece is compiled and planned.
#pragma once

#include <cstdint>
#include <functional>

#include "optimizer/memory/memory_optimizer.h"
#include "optimizer/pass.h"

namespace ortmodule {

/// Each option stands in one struct, which whoever needs it gets whole.
struct SessionOptions {
  OptimizerOptions optimizer;  // with the device, and whether a gradient will be taken
  MemoryOptions memory;
  int64_t plan_cache_bytes = int64_t{64} << 20;  // see plans_within
  /// Called before a plan is made; throws where none can be.
  std::function<void()> before_plan = {};

  Device device() const { return optimizer.device; }
  /// False: forward only, nothing is saved.
  bool training() const { return optimizer.training; }
};

}  // namespace ortmodule
