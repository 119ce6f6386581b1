// An execution plan for one set of shapes: its steps in order, their kernels, and the memory of
// every tensor. Plain data, made by pure functions; the runtime follows it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/short_list.h"
#include "base/typed_id.h"
#include "ir/graph.h"
#include "kernels/kernel.h"

namespace ortmodule {

using TensorId = Id<struct TensorTag>;
using StorageId = Id<struct StorageTag>;
using BufferId = Id<struct BufferTag>;

enum class BufferKind : uint8_t {
  Argument,      // a graph input, owned by the caller; `index` is its position
  OutputGrad,    // gradient of a forward output, given by autograd; `index` is the input position
  Output,        // returned to the caller; `index` is GraphOutput::index
  Gradient,      // returned to the caller; `index` is the graph input it belongs to
  Saved,         // a segment of saved activations
  Host,          // saved activations in memory of the host, which counts in no peak
  ForwardArena,  // temporaries and workspaces of a phase of forward
  BackwardArena,
};

/// One allocation. The engine allocates its buffers before `first_step` and frees them after
/// `last_step`; outputs and gradients then belong to the caller.
struct PlannedBuffer {
  BufferKind kind = BufferKind::Argument;
  size_t index = 0;
  int64_t bytes = 0;
  int first_step = 0;
  int last_step = 0;
  bool kernel_allocated = false;  // allocated by the kernel, not by the runtime
  bool owned() const { return kind != BufferKind::Argument && kind != BufferKind::OutputGrad; }
  /// Whether the caller has it at the end.
  bool returned() const { return kind == BufferKind::Output || kind == BufferKind::Gradient; }
};

/// What a storage is called: by its first value, or by the op that works in it. The graph of the
/// plan has the texts.
struct StorageName {
  enum class Kind : uint8_t { Value, Copy, Workspace };
  const std::string* of = nullptr;
  Kind kind = Kind::Value;

  std::string text() const {
    if (!of) return {};
    if (kind == Kind::Workspace) return "workspace of " + *of;
    return kind == Kind::Copy ? *of + " copied" : *of;
  }
};

/// Memory that one or more tensors view.
struct PlannedStorage {
  enum class Role : uint8_t { Argument, Output, Gradient, Saved, Forward, Backward, Host };
  Role role = Role::Forward;
  size_t index = 0;  // Argument: graph input; Output, Gradient: as in PlannedBuffer
  int64_t bytes = 0;
  int first_step = -1;  // -1: allocated before the first step
  int last_step = -1;
  BufferId buffer;
  int64_t offset_bytes = 0;
  bool kernel_allocated = false;  // by the kernel that writes it, in a buffer of its own
  /// A saved activation whose memory backward reuses for a gradient. It has a buffer of its own,
  /// which can be returned to the caller.
  bool becomes_gradient = false;
  StorageName name;
};

/// A tensor of the plan; views share a storage.
struct PlannedTensor {
  const Value* value = nullptr;
  DType dtype = DType::Undefined;
  Layout layout;
  StorageId storage;
};

using TensorList = ShortList<TensorId, 4>;

struct PlannedStep {
  static constexpr uint32_t kInserted = ~uint32_t{0};

  ShortList<const Node*, 2> nodes;  // empty for a copy or a wait that the plan inserted
  Region region = Region::Forward;
  const KernelDef* kernel = nullptr;  // its op is "Contiguous" for a copy that the plan inserted
  std::shared_ptr<const void> prepared;
  std::shared_ptr<const StepFacts> facts;  // one for steps that are alike, as in repeated layers
  TensorList in;                           // none for an absent operand
  TensorList out;
  StorageId workspace_storage;
  int64_t library_bytes = 0;     // allocated by the kernel's library while it runs
  size_t range = 0;              // of backward; 0 runs first
  uint32_t lowered = kInserted;  // step of the lowered graph
};

/// A result of a view, which is no step.
struct PlannedView {
  TensorId source;
  TensorId result;
  uint32_t lowered = 0;  // step of the lowered graph
  uint32_t output = 0;   // of its node
};

/// What memory planning changes, as it was before: from there the plan of other sizes continues.
/// Kept by plans of sessions alone.
struct PlanDraft {
  struct Storage {
    PlannedStorage::Role role = PlannedStorage::Role::Forward;
    size_t index = 0;
    int64_t bytes = 0;
  };
  IdVector<TensorId, StorageId> storage_of;
  IdVector<StorageId, Storage> storages;
};

/// A gradient that the backward pass returns.
struct PlannedGradient {
  size_t input = 0;  // graph input
  TensorId tensor;   // none: the input has no gradient
  size_t range = 0;  // it is returned at the end of this range
};

struct Plan {
  std::shared_ptr<const Graph> graph;  // lowered; steps point into it
  /// Of the plan whose forward a backward plan continues, into which its storages point.
  std::shared_ptr<const Graph> forward_graph;
  std::vector<PlannedStep> steps;
  int forward_steps = 0;  // steps[0, forward_steps) are forward
  IdVector<TensorId, PlannedTensor> tensors;
  IdVector<StorageId, PlannedStorage> storages;
  IdVector<BufferId, PlannedBuffer> buffers;
  std::vector<PlannedView> views;  // in the order of their results
  PlanDraft draft;
  std::vector<TensorId> output_tensors;  // by GraphOutput::index
  std::vector<PlannedGradient> gradients;
  std::vector<size_t> saved_arguments;    // graph inputs that backward reads
  std::vector<size_t> saved_outputs;      // outputs that backward reads
  std::vector<size_t> mutated_arguments;  // graph inputs written at the end of forward
  /// For backward: a mutated argument and the copy of its value before the run.
  std::vector<std::pair<TensorId, TensorId>> old_contents;
  size_t ranges = 1;
  bool exact = true;               // false if a kernel may allocate more than it declares
  std::vector<std::string> notes;  // why copies were inserted

  int64_t forward_peak_bytes = 0;  // bytes allocated by the engine
  int64_t peak_bytes = 0;          // over forward and backward
  int peak_step = 0;
  int64_t saved_bytes = 0;  // allocated between forward and backward
  int64_t host_bytes = 0;   // of the host, beside all others

  SymbolValues symbols;

  PlannedStep& step(int number) { return steps[static_cast<size_t>(number)]; }
  const PlannedStep& step(int number) const { return steps[static_cast<size_t>(number)]; }
  int step_count() const { return static_cast<int>(steps.size()); }
  PlannedStorage& storage_of(TensorId tensor) { return storages[tensors[tensor].storage]; }
  const PlannedStorage& storage_of(TensorId tensor) const {
    return storages[tensors[tensor].storage];
  }
};

/// The layout in which backward reads the gradient of an output: that of the output, or row-major
/// if the output has gaps. A gradient in another layout is copied first.
Layout grad_output_layout(const Layout& output);

/// The plan as text: peak, buffers, and steps with their kernels and operands.
std::string print(const Plan& plan);

}  // namespace ortmodule
