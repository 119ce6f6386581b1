// What one forward run and its backward pass share.
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

/// A forward run between forward and backward; shared by the chained autograd nodes of its ranges.
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
  std::vector<at::Tensor> tensors;  // arguments by graph input; only those in use
  std::vector<at::Tensor> outputs;  // filled by forward
  std::vector<at::Tensor> held;     // saved arguments and outputs during backward
  std::vector<std::pair<BufferId, at::Tensor>> arrived;  // gradients of outputs
  const Program* backward = nullptr;                     // chosen when the first range runs
  DrawnSeed seed;
  std::unique_ptr<RunnerState> runner;  // what the runner keeps of the run
  bool records_gradients = false;
  int64_t planned_peak_bytes = 0;  // of the backward passes so far
  bool begun = false;              // by a pass that does not keep what it reads
  bool consumed = false;           // that pass has run to its end
  std::mutex running;              // two threads may call backward of one forward
  int pass = -1;                   // graph task whose ranges the frame serves
};

}  // namespace ortmodule::bindings
