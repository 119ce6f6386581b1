// ORTMODULE_CUDA_GRAPH: the steps of a plan recorded as CUDA graphs, one for forward and one for
// each range of backward, and replayed. For models whose time is that of launching.
//
// The first run of a plan is an ordinary one, in which libraries choose their algorithms; the
// second is recorded. A graph has the addresses of its recording. Parameters and buffers are read
// and written where they are, and a recording ends where they move; what else comes in is copied to
// where the graph reads it, what goes out is copied to memory of the caller's. What lies in between
// belongs to the recordings of a piece together, so that one run at a time, from its forward to the
// end of its backward pass, uses them; another one in flight runs step by step.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/step_recorder.h"
#include "kernels/run_seed.h"
#include "runtime/program.h"
#include "session.h"

namespace ortmodule::bindings {

class DeviceRuntime;
struct RunState;

/// How one part of a run goes through.
enum class GraphMode : uint8_t { StepByStep, Recorded, Replayed };

struct Recording;

/// A run's part in a recording.
struct GraphRun {
  GraphMode forward = GraphMode::StepByStep;
  GraphMode backward = GraphMode::StepByStep;
  std::shared_ptr<Recording> recording;
  std::shared_ptr<void> lease;               // of the recordings' memory
  std::vector<const void*> saved_addresses;  // of what autograd saved, as forward left it
};

/// What was done with a piece's plans.
struct GraphCounts {
  int64_t recorded = 0;   // plans of which all steps are graphs
  int64_t replayed = 0;   // runs that replayed forward
  int64_t in_flight = 0;  // runs that found another one between its forward and backward
  std::vector<std::string> refusals;  // why plans run step by step
};

/// The graphs of one piece. Threads may call it at once.
class GraphReplay {
 public:
  GraphReplay(DeviceRuntime& runtime, std::unique_ptr<StepRecorder> recorder);
  ~GraphReplay();

  /// Runs forward as a graph and fills in the outputs, or returns false: then nothing has run.
  /// `launch` draws the run's seed and executes the steps of forward.
  bool forward(RunState& state, const std::function<void()>& launch);
  /// Chooses how the backward pass runs, which is bound already but for its gradients and saved
  /// values; these are `saved`.
  void choose_backward(RunState& state, const std::vector<at::Tensor>& saved);
  /// Copies the gradients that arrived to where the graph reads them.
  void stage_gradients(RunState& state);
  /// Runs a range of backward as a graph; returns the gradients of `inputs` (graph inputs,
  /// undefined for those without), or nothing: then no step of the range has run.
  std::optional<std::vector<at::Tensor>> backward(RunState& state, int range,
                                                  const std::vector<int64_t>& inputs,
                                                  const std::function<void()>& launch);
  /// To be told when all that a run needs has been launched.
  void finished(RunState& state);

  GraphCounts counts() const;
  /// Why plans run step by step, as far as it was not asked before.
  std::vector<std::string> take_warnings();

 private:
  std::shared_ptr<Recording> recording_of(const RunState& state);
  std::shared_ptr<void> lease();
  void refuse(Recording& recording, const std::string& reason);
  void record_forward(RunState& state, Recording& recording, const std::function<void()>& launch);
  void replay_forward(RunState& state, Recording& recording);
  void give_outputs(RunState& state, Recording& recording);
  void own_gradients(RunState& state);

  DeviceRuntime& runtime_;
  std::unique_ptr<StepRecorder> recorder_;
  std::shared_ptr<std::atomic<bool>> leased_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;  // guards the rest
  std::map<std::weak_ptr<PlanEntry>, std::shared_ptr<Recording>,
           std::owner_less<std::weak_ptr<PlanEntry>>>
      recordings_;
  GraphCounts counts_;
  size_t said_ = 0;  // refusals that take_warnings gave
};

}  // namespace ortmodule::bindings
