// A plan: what to run, in which order, with which kernels, on which bytes, for one signature of
// shapes. Plain data, made by pure functions, printable; the runtime only follows it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  Output,        // becomes the caller's tensor; `index` is GraphOutput::index
  Gradient,      // becomes the caller's tensor; `index` is the graph input it belongs to
  Saved,         // segment of values that backward reads
  ForwardArena,  // transient values and scratch of a phase of forward
  BackwardArena,
};

/// One allocation. Engine-owned buffers live from the start of `first_step` to the end of
/// `last_step`; outputs and gradients then belong to the caller.
struct PlannedBuffer {
  BufferKind kind = BufferKind::Argument;
  size_t index = 0;
  int64_t bytes = 0;
  int first_step = 0;
  int last_step = 0;
  bool kernel_allocated = false;  // allocated by a kernel's library, not by the runtime
  bool owned() const { return kind != BufferKind::Argument && kind != BufferKind::OutputGrad; }
};

/// Memory that one or more tensors view.
struct PlannedStorage {
  enum class Role : uint8_t { Argument, Output, Gradient, Saved, Forward, Backward };
  Role role = Role::Forward;
  size_t index = 0;  // Argument: graph input; Output, Gradient: as in PlannedBuffer
  int64_t bytes = 0;
  int first_step = -1;  // -1: exists before the first step
  int last_step = -1;
  BufferId buffer;
  int64_t offset_bytes = 0;
  bool kernel_allocated = false;  // by the kernel that writes it: a buffer of its own
  /// Forward allocates it and backward accumulates a gradient in it: a buffer of its own, which the
  /// caller may receive.
  bool becomes_gradient = false;
  std::string name;  // of its first value
};

/// A tensor of the plan; views share a storage.
struct PlannedTensor {
  const Value* value = nullptr;
  DType dtype = DType::Undefined;
  Layout layout;
  StorageId storage;
};

struct PlannedStep {
  std::vector<const Node*> nodes;  // empty for a copy that the plan inserted
  Region region = Region::Forward;
  std::string kernel_op;  // what select_kernel was asked for
  const KernelDef* kernel = nullptr;
  std::shared_ptr<const void> prepared;
  StepFacts facts;
  std::vector<TensorId> in;  // none for an absent operand
  std::vector<TensorId> out;
  StorageId workspace_storage;
  int64_t library_bytes = 0;       // allocated by the kernel's library while it runs
  std::vector<BufferId> allocate;  // buffers that begin here
  std::vector<BufferId> release;   // buffers that end here
  size_t range = 0;                // backward: which piece of the schedule (0 runs first)
};

/// A gradient that the backward pass hands over.
struct PlannedGradient {
  size_t input = 0;  // graph input
  TensorId tensor;   // none: no gradient flows
  size_t range = 0;  // range whose end completes it
};

struct Plan {
  std::shared_ptr<const Graph> graph;  // lowered; steps point into it
  std::vector<PlannedStep> steps;
  int forward_steps = 0;  // steps[0, forward_steps) are forward
  IdVector<TensorId, PlannedTensor> tensors;
  IdVector<StorageId, PlannedStorage> storages;
  IdVector<BufferId, PlannedBuffer> buffers;
  std::vector<TensorId> output_tensors;  // by GraphOutput::index
  std::vector<PlannedGradient> gradients;
  std::vector<size_t> saved_arguments;    // graph inputs that backward reads
  std::vector<size_t> saved_outputs;      // outputs that backward reads
  std::vector<size_t> mutated_arguments;  // graph inputs written at the end of forward
  /// Tensor of a mutated argument -> tensor of its content before the run, for backward.
  std::vector<std::pair<TensorId, TensorId>> old_contents;
  size_t ranges = 1;
  bool exact = true;               // false if a kernel may allocate what it did not declare
  std::vector<std::string> notes;  // why copies were inserted, kernels refused ...

  int64_t forward_peak_bytes = 0;  // engine bytes, relative to entry of forward
  int64_t peak_bytes = 0;          // over forward and backward
  int peak_step = 0;
  int64_t saved_bytes = 0;  // segments alive between forward and backward

  SymbolValues symbols;

  PlannedStep& step(int number) { return steps[static_cast<size_t>(number)]; }
  const PlannedStep& step(int number) const { return steps[static_cast<size_t>(number)]; }
  int step_count() const { return static_cast<int>(steps.size()); }
  PlannedStorage& storage_of(TensorId tensor) { return storages[tensors[tensor].storage]; }
  const PlannedStorage& storage_of(TensorId tensor) const {
    return storages[tensors[tensor].storage];
  }
};

/// How the gradient of an output of that layout is to lie: as the output, or row-major if that has
/// gaps. One that arrives otherwise is copied.
Layout grad_output_layout(const Layout& output);

/// The plan as a table: steps with kernel, operands, bytes; buffers; peak.
std::string print(const Plan& plan);

}  // namespace ortmodule
