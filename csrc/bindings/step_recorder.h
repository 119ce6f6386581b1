// Steps that are recorded once and replayed: CUDA graphs, as far as the engine knows them.
#pragma once

#include <functional>
#include <memory>

namespace ortmodule::bindings {

/// Launches that were recorded, with the addresses that they had.
class RecordedSteps {
 public:
  virtual ~RecordedSteps() = default;
  /// Launches them again on the current stream. Random numbers are drawn anew.
  virtual void replay() = 0;
};

/// Records the steps of one piece. What they allocate lies in memory that is kept for the
/// recordings, and that all of them share: it holds nothing but what is recorded between the
/// forward and the end of the backward pass of one run.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  /// Calls `launch`, keeps what it launched, and has that run once. Throws what `launch` throws,
  /// and what the device says of steps that cannot be recorded; then nothing has run.
  virtual std::unique_ptr<RecordedSteps> record(const std::function<void()>& launch) = 0;
  /// Lets what the current stream does next wait for the work noted last, on whatever stream.
  virtual void join() {}
  /// Notes that the recordings' memory is in use by what was launched until now.
  virtual void note_use() {}
};

}  // namespace ortmodule::bindings
