// An interface to record steps once and replay them. CUDA graphs implement it.
#pragma once

#include <functional>
#include <memory>

namespace ortmodule::bindings {

/// Recorded kernel launches, with their addresses.
class RecordedSteps {
 public:
  virtual ~RecordedSteps() = default;
  /// Launches them again on the current stream, with new random numbers.
  virtual void replay() = 0;
};

/// Records the steps of one piece. All recordings allocate from one memory pool, whose contents are
/// only valid from the forward of a run to the end of its backward pass.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  /// Records what `launch` launches, and runs it once. Throws what `launch` throws, or the device's
  /// error if steps cannot be recorded; then nothing has run.
  virtual std::unique_ptr<RecordedSteps> record(const std::function<void()>& launch) = 0;
  /// Makes the current stream wait for the work of the last note_use(), on any stream.
  virtual void join() {}
  /// Notes that work launched so far on the current stream uses the recordings' memory.
  virtual void note_use() {}
};

}  // namespace ortmodule::bindings
