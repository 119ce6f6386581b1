// What a thread takes from torch's allocator while a library runs.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "kernels/kernel.h"

namespace ortmodule {

/// Follows this thread's allocations on engine_device() through torch's hook for memory profilers.
/// To torch it is a profiler that is off: what torch finds there it takes for a profiler's state,
/// and asks for its configuration (in each autograd.Function, for one).
class AllocationCounter final : public torch::profiler::impl::ProfilerStateBase {
 public:
  AllocationCounter()
      : ProfilerStateBase(
            torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {
  }

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* block, int64_t bytes, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;

  /// The most bytes held at once, without those that `results` hold.
  int64_t peak_beyond(std::span<const Buffer> results) const;

 private:
  int64_t now_ = 0, peak_ = 0;
  // What is held. The allocator may give more than was asked for, and one that wraps torch's may
  // put a header before a tensor's bytes: a result lies somewhere in its block.
  std::map<const void*, int64_t> blocks_;
};

/// Measures the steps whose kernels are labelled inexact, and remembers what they took for the
/// plans that are made later. Measures nothing while torch's profiler uses the hook.
class AtenLibraryMeter final : public LibraryMeter {
 public:
  void start() override;
  int64_t stop(const StepFacts& facts, std::span<const Buffer> results,
               int64_t declared_bytes) override;

 private:
  std::shared_ptr<AllocationCounter> counter_;
  std::optional<c10::DebugInfoGuard> counting_;
};

}  // namespace ortmodule
