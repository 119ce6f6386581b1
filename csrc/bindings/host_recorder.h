// Recorded steps where CUDA kernels are emulated on the host: a log of calls in place of a graph.
#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "bindings/step_recorder.h"
#include "kernels/kernel.h"

namespace ortmodule::bindings {

/// Memory that is handed out again and again, and given back with the last user of the pool; what a
/// private pool of torch's caching allocator is to CUDA graphs.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  /// At least `bytes` bytes.
  Buffer allocate(int64_t bytes);
  ~HostPool();

 private:
  struct Block;
  static void give_back(void* block);
  std::vector<std::unique_ptr<Block>> blocks_;
};

class HostRecorder : public StepRecorder, private CallLog {
 public:
  HostRecorder();
  ~HostRecorder() override;

  /// The one that records on this thread, if any.
  static HostRecorder* current();

  std::unique_ptr<RecordedSteps> record(const std::function<void()>& launch) override;

  /// What steps that are being recorded allocate.
  Buffer allocate(int64_t bytes) { return pool_->allocate(bytes); }
  /// Lets `draw` write a number at `key`, now and before each replay.
  void draw_into(uint64_t* key, std::function<uint64_t()> draw);
  CallLog* log() { return this; }

 private:
  class Calls;
  void ran(void (*run)(const KernelArgs&), const KernelArgs& args) override;

  std::shared_ptr<HostPool> pool_;
  std::unique_ptr<Calls> calls_;  // while it records
};

}  // namespace ortmodule::bindings
