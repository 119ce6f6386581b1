// The state of a run, from its forward to its backward pass.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/engine.h"
#include "bindings/step_runner.h"
#include "runtime/program.h"

namespace ortmodule::bindings {

/// The state of one run, shared by the autograd nodes of its ranges.
struct RunState : torch::CustomClassHolder {
  RunState(std::shared_ptr<CompiledPiece> owner_, std::shared_ptr<PlanEntry> entry_)
      : owner(std::move(owner_)),
        piece(*owner),
        entry(std::move(entry_)),
        frame(entry->program, piece.runtime().allocator()) {}

  const Plan& plan() const { return *entry->program.plan; }

  std::shared_ptr<CompiledPiece> owner;  // backward may outlive the module
  CompiledPiece& piece;
  std::shared_ptr<PlanEntry> entry;
  Frame frame;
  std::vector<at::Tensor> tensors;  // arguments by graph input
  std::vector<at::Tensor> outputs;  // filled by forward
  std::vector<at::Tensor> held;     // saved arguments and outputs during backward
  std::vector<std::pair<BufferId, at::Tensor>> arrived;  // gradients of outputs
  const Program* backward = nullptr;                     // chosen when the first range runs
  DrawnSeed seed;
  std::unique_ptr<RunnerState> runner;  // what the runner keeps for this run
  bool records_gradients = false;
  int64_t planned_peak_bytes = 0;  // highest of the backward passes so far
  bool begun = false;              // a pass without retain_graph has begun
  bool consumed = false;           // that pass has finished
  std::mutex running;              // two threads may call backward of one forward
  int pass = -1;                   // the autograd graph task that the frame belongs to
};

}  // namespace ortmodule::bindings
