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
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/step_recorder.h"
#include "bindings/step_runner.h"
#include "runtime/program.h"
#include "session.h"

namespace ortmodule::bindings {

class DeviceRuntime;
struct RunState;

struct Recording;

/// Replays the steps of one piece as graphs, where it can; else they run step by step.
class GraphReplay : public StepRunner {
 public:
  GraphReplay(DeviceRuntime& runtime, std::unique_ptr<StepRecorder> recorder);
  ~GraphReplay() override;

  void forward(RunState& state) override;
  /// Chooses how the backward pass runs.
  void begin_backward(RunState& state, const std::vector<at::Tensor>& saved) override;
  /// Copies the gradients that arrived to where the graph reads them.
  void bound_backward(RunState& state) override;
  std::vector<at::Tensor> backward(RunState& state, size_t range,
                                   const std::vector<int64_t>& inputs, bool keep_saved) override;
  void finished(RunState& state) override;

  std::optional<GraphCounts> graph_counts() const override;
  /// Why plans run step by step.
  std::vector<std::string> take_warnings() override;

 private:
  /// Runs forward as a graph and fills in the outputs, or returns false: then nothing has run.
  bool try_forward(RunState& state);
  /// Records a range of backward; `taken` receives the gradients of `inputs` as the graph leaves
  /// them. Or returns false: then no step of the range has run.
  bool record_range(RunState& state, size_t range, const std::vector<int64_t>& inputs,
                    std::vector<Buffer>& taken);
  std::shared_ptr<Recording> recording_of(const RunState& state);
  std::shared_ptr<void> lease();
  void refuse(Recording& recording, const std::string& reason);
  void record_forward(RunState& state, Recording& recording);
  void replay_forward(RunState& state, Recording& recording);
  void give_outputs(RunState& state, Recording& recording);
  void own_gradients(RunState& state);

  DeviceRuntime& runtime_;
  StepByStep step_by_step_;
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
