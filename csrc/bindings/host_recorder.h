// Records and replays steps where CUDA kernels are emulated on the host: a list of calls stands in
// for a CUDA graph.
#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "bindings/step_recorder.h"
#include "kernels/kernel.h"

namespace ortmodule::bindings {

/// A memory pool that reuses its blocks, and frees them with its last user. Stands in for the
/// private pool that torch's caching allocator gives to CUDA graphs.
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

  /// The recorder that is recording on this thread, or null.
  static HostRecorder* current();

  std::unique_ptr<RecordedSteps> record(const std::function<void()>& launch) override;

  /// Allocates memory for steps that are being recorded.
  Buffer allocate(int64_t bytes) { return pool_->allocate(bytes); }
  /// Writes a number from `draw` to `key`, now and before each replay.
  void draw_into(uint64_t* key, std::function<uint64_t()> draw);
  CallLog* log() { return this; }

 private:
  class Calls;
  void ran(void (*run)(const KernelArgs&), const KernelArgs& args) override;

  std::shared_ptr<HostPool> pool_;
  std::unique_ptr<Calls> calls_;  // while it records
};

}  // namespace ortmodule::bindings
