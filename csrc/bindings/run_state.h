// The state of a run, from its forward to its backward pass.
#pragma once

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/custom_class.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine.h"
#include "bindings/separate_passes.h"
#include "bindings/step_runner.h"
#include "runtime/program.h"

namespace ortmodule::bindings {

/// A run of a backward pass that was a piece of its own.
struct DerivedRun {
  std::shared_ptr<CompiledPiece> piece;
  int64_t outside_bytes = 0;  // that this run's forward and autograd held beside it
};

/// A weak reference to an argument, which backward need not read, but gradients of gradients may.
class UnsavedArgument {
 public:
  explicit UnsavedArgument(const at::Tensor& tensor)
      : tensor_(tensor.getIntrusivePtr()), version_(version_of(tensor)) {}

  /// The argument, or an undefined tensor if it was freed or changed in place since.
  at::Tensor get() const {
    at::Tensor tensor(tensor_.lock());
    return tensor.defined() && version_of(tensor) == version_ ? tensor : at::Tensor();
  }

 private:
  static int64_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
  }

  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> tensor_;
  int64_t version_;
};

/// The state of one run, shared by the autograd nodes of its ranges.
struct RunState : torch::CustomClassHolder {
  RunState(std::shared_ptr<CompiledPiece> owner_, std::shared_ptr<PlanEntry> entry_)
      : owner(std::move(owner_)),
        piece(*owner),
        entry(std::move(entry_)),
        frame(entry->program, piece.runtime().allocator()) {
    if (plan().host_bytes == 0) return;
    frame.keep_on_host(piece.pinned_blocks());
    host_copies = piece.runtime().host_copies();
  }

  /// Whether a tensor outside of the frame views what it has saved.
  bool is_viewed() const { return lease.use_count() > 1; }
  const Plan& plan() const { return *entry->program.plan; }
  /// The graph inputs whose gradients the autograd node of `range` returns. That of a derived piece
  /// has edges to all: gradients of what it has computed may reach more inputs than its own do.
  std::vector<size_t> edges(size_t range) const {
    std::vector<size_t> inputs;
    for (const PlannedGradient& gradient : plan().gradients)
      if (gradient.range == range && (gradient.tensor || piece.options().is_derived))
        inputs.push_back(gradient.input);
    return inputs;
  }

  std::shared_ptr<CompiledPiece> owner;  // backward may outlive the module
  CompiledPiece& piece;
  std::shared_ptr<PlanEntry> entry;
  Frame frame;
  std::unique_ptr<HostCopies> host_copies;  // behind the frame, since it ends copies of its memory
  std::vector<at::Tensor> tensors;          // arguments by graph input
  std::vector<at::Tensor> outputs;          // filled by forward
  std::vector<at::Tensor> held;             // saved arguments and outputs during backward
  std::vector<std::pair<BufferId, at::Tensor>> arrived;  // gradients of outputs
  const Program* backward = nullptr;                     // chosen when the first range runs
  DrawnSeed seed;
  uint64_t generated_code = 0;          // as in KernelContext, for forward and backward
  bool seed_is_given = false;           // that of the forward pass whose backward this run is
  std::unique_ptr<RunnerState> runner;  // what the runner keeps for this run
  bool records_gradients = false;
  int64_t planned_peak_bytes = 0;  // highest of the backward passes so far
  /// The arguments, then the outputs that backward reads, in the order of the plan's lists.
  std::vector<torch::autograd::SavedVariable> saved;
  bool begun = false;                // a pass without retain_graph has begun
  bool consumed = false;             // that pass has finished, and no output is left
  std::vector<bool> left;            // the outputs that can have a pass behind this one
  std::vector<bool> ended;           // the outputs that had theirs without retain_graph
  std::vector<KeptActivation> kept;  // what the others read
  int64_t kept_bytes = 0;
  std::mutex running;  // two threads may call backward of one forward
  /// Gradients of gradients: the saved values that became outputs of the first node, behind those
  /// of forward, and the gradients by graph input that the nodes of later ranges return.
  std::vector<std::string> hidden;
  std::vector<at::Tensor> derived;
  std::vector<UnsavedArgument> unsaved;  // by graph input
  std::map<size_t, at::Tensor> changed;  // by graph input: copies of what forward has changed
  std::vector<DerivedRun> derived_runs;
  int derived_pass = -1;       // the pass that they are of
  std::shared_ptr<int> lease;  // held by tensors that view saved activations
  int pass = -1;               // the autograd graph task that the frame belongs to
};

}  // namespace ortmodule::bindings
