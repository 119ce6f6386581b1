// How the steps of runs are launched: one by one, or replayed from a recording (graph_replay.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ortmodule::bindings {

struct RunState;

/// What a runner keeps of one run, from its forward to the end of its last backward pass.
class RunnerState {
 public:
  virtual ~RunnerState() = default;
};

/// What was done with the plans of a piece whose steps are to be CUDA graphs.
struct GraphCounts {
  int64_t recorded = 0;   // plans of which all steps are graphs
  int64_t replayed = 0;   // runs that replayed forward
  int64_t in_flight = 0;  // runs that found another one between its forward and backward
  std::vector<std::string> refusals;  // why plans run step by step
};

/// Launches the steps of one piece. Threads may use it at once, for different runs.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// Runs forward on the run's arguments, and fills in its outputs.
  virtual void forward(RunState& state) = 0;
  /// Told of a backward pass whose program is chosen, before it is bound; `saved` is what autograd
  /// gave back of what forward saved.
  virtual void begin_backward(RunState& state, const std::vector<at::Tensor>& saved) = 0;
  /// Told when saved values and the gradients that arrived are bound.
  virtual void bound_backward(RunState& state) = 0;
  /// Runs a range of backward; returns the gradients of `inputs` (graph inputs, undefined for those
  /// without). With `keep_saved` the pass can run again.
  virtual std::vector<at::Tensor> backward(RunState& state, size_t range,
                                           const std::vector<int64_t>& inputs, bool keep_saved) = 0;
  /// Told when all that a run needs has been launched, before its peak is read.
  virtual void finished(RunState& state) = 0;

  /// Nothing if no graphs were asked for.
  virtual std::optional<GraphCounts> graph_counts() const { return std::nullopt; }
  /// What could not be done as asked, as far as it was not said before.
  virtual std::vector<std::string> take_warnings() { return {}; }
};

/// Launches each step of each run.
class StepByStep : public StepRunner {
 public:
  void forward(RunState& state) override;
  void begin_backward(RunState&, const std::vector<at::Tensor>&) override {}
  void bound_backward(RunState&) override {}
  std::vector<at::Tensor> backward(RunState& state, size_t range,
                                   const std::vector<int64_t>& inputs, bool keep_saved) override;
  void finished(RunState&) override {}
};

/// Draws the run's seed and executes the steps of forward on what the frame is bound to.
void launch_forward(RunState& state);

/// Executes the steps of a range of backward on what the frame is bound to.
void launch_range(RunState& state, size_t range, bool keep_saved);

}  // namespace ortmodule::bindings
