// ORTMODULE_CUDA_GRAPH: records the steps of a plan as CUDA graphs, one for forward and one for
// each backward range, and replays them. For models that are bound by kernel launches.
//
// The first run of a plan is not recorded, since libraries choose their algorithms in it; the
// second is. A graph contains addresses. Parameters and buffers are used in place, and the plan is
// recorded again if they move. Other inputs are copied to static memory; outputs and gradients are
// copied out. All recordings of a piece share one memory pool, so only one run at a time can use
// them, from its forward to the end of its backward pass; other runs in flight fall back to step by
// step.
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

/// Replays the steps of one piece as graphs where possible, and falls back to step by step.
class GraphReplay : public StepRunner {
 public:
  GraphReplay(DeviceRuntime& runtime, std::unique_ptr<StepRecorder> recorder);
  ~GraphReplay() override;

  void forward(RunState& state) override;
  /// Decides whether the backward pass is recorded, replayed or runs step by step.
  void begin_backward(RunState& state, const std::vector<at::Tensor>& saved) override;
  /// Copies the output gradients that arrived to the graph's static memory.
  void bound_backward(RunState& state) override;
  std::vector<at::Tensor> backward(RunState& state, size_t range,
                                   const std::vector<int64_t>& inputs, bool keep_saved) override;
  void finished(RunState& state) override;

  std::optional<GraphCounts> graph_counts() const override;
  /// Why plans fell back to step by step.
  std::vector<std::string> take_warnings() override;

 private:
  /// Runs forward as a graph and fills in the outputs. False: nothing has run.
  bool try_forward(RunState& state);
  /// Records a backward range; `taken` receives the memory of the gradients of `inputs` in the
  /// graph. False: no step of the range has run.
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
  size_t warned_ = 0;  // refusals that take_warnings has returned
};

}  // namespace ortmodule::bindings
