// How a piece is compiled and planned.
#pragma once

#include <cstdint>
#include <functional>

#include "base/device.h"
#include "optimizer/memory/memory_optimizer.h"
#include "optimizer/pass.h"

namespace ortmodule {

struct SessionOptions {
  Device device = Device::CPU;
  bool training = true;  // false: forward only, nothing is saved
  OptimizerOptions optimizer;
  MemoryOptions memory;
  int64_t plan_cache_bytes = int64_t{64} << 20;  // see plans_within
  /// Called before a plan is made; throws where none can be.
  std::function<void()> before_plan = {};
};

}  // namespace ortmodule
