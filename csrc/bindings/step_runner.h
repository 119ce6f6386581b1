// Launches the steps of runs: one by one, or by replaying a recording (graph_replay.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ortmodule::bindings {

struct RunState;

/// What a runner keeps for one run, from forward to the end of the last backward pass.
class RunnerState {
 public:
  virtual ~RunnerState() = default;
};

/// Statistics of a piece that runs as CUDA graphs.
struct GraphCounts {
  int64_t recorded = 0;               // plans that were recorded
  int64_t replayed = 0;               // runs that replayed forward
  int64_t in_flight = 0;              // runs that fell back since another one was in flight
  std::vector<std::string> refusals;  // why plans fell back to step by step
};

/// Launches the steps of one piece. Thread-safe for different runs.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// Runs forward and fills in the outputs.
  virtual void forward(RunState& state) = 0;
  /// Called when the program of a backward pass is chosen, before anything is bound. `saved`: the
  /// saved tensors as autograd returned them.
  virtual void begin_backward(RunState& state, const std::vector<at::Tensor>& saved) = 0;
  /// Called when saved tensors and output gradients are bound.
  virtual void bound_backward(RunState& state) = 0;
  /// Runs a backward range. Returns the gradients of `inputs` (graph inputs), undefined where there
  /// is none. With `keep_saved` the pass can run again.
  virtual std::vector<at::Tensor> backward(RunState& state, size_t range,
                                           const std::vector<int64_t>& inputs, bool keep_saved) = 0;
  /// Called when the last step of a run has been launched, before its peak is read.
  virtual void finished(RunState& state) = 0;

  /// Not set if CUDA graphs are off.
  virtual std::optional<GraphCounts> graph_counts() const { return std::nullopt; }
  /// Warnings since the last call.
  virtual std::vector<std::string> take_warnings() { return {}; }
};

/// Launches the steps one by one.
class StepByStep : public StepRunner {
 public:
  void forward(RunState& state) override;
  void begin_backward(RunState&, const std::vector<at::Tensor>&) override {}
  void bound_backward(RunState&) override {}
  std::vector<at::Tensor> backward(RunState& state, size_t range,
                                   const std::vector<int64_t>& inputs, bool keep_saved) override;
  void finished(RunState&) override {}
};

/// Chooses the code compiled at run time for a run and its backward. Not while steps are recorded,
/// when none may be loaded.
void choose_code(RunState& state);

/// Draws the seed and executes the steps of forward; arguments must be bound.
void launch_forward(RunState& state);

/// Executes the steps of a backward range; saved tensors and output gradients must be bound.
void launch_range(RunState& state, size_t range, bool keep_saved);

}  // namespace ortmodule::bindings
