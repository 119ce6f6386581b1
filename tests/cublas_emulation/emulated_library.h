// What the emulated cuBLASLt was asked for, and what it shall refuse.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "cublasLt.h"

namespace ortmodule::cublas::emulation {

struct Counts {
  std::atomic<int64_t> created = 0;  // descriptors of all kinds, without preferences
  std::atomic<int64_t> alive = 0;
  std::atomic<int64_t> heuristics = 0;
  std::atomic<int64_t> launches = 0;
  std::atomic<int> last_compute = 0;  // cublasComputeType_t of the last launch
};
Counts& counts();

/// Asked before each launch; what it returns but success is the status of the launch.
using Refusal = std::function<cublasStatus_t(cublasLtEpilogue_t)>;
void refuse(Refusal refusal);

}  // namespace ortmodule::cublas::emulation
