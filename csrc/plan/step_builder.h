// The first part of planning: chooses the layout of every value and the kernel of every step, and
// inserts copies where a kernel or the caller needs another layout.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/per_value.h"
#include "plan/edge_layouts.h"
#include "plan/make_plan.h"

namespace ortmodule {

inline int64_t storage_bytes(const Layout& layout, DType dtype) {
  return extent(layout) * static_cast<int64_t>(size_of(dtype));
}

inline Layout contiguous_layout(const Sizes& sizes) {
  return {sizes, contiguous_strides(sizes), 0};
}

/// Throws Error for sizes that no plan takes: a model that computes them may make any.
void check_sizes(const Value& value, const Sizes& sizes);

/// Whether a layout has those strides, which matter only where a dimension has more than one
/// element.
bool same_strides(const Layout& layout, const Sizes& wanted);

class StepBuilder {
 public:
  /// Fills an empty plan with the arguments.
  StepBuilder(Plan& plan, const Lowered& lowered, const PlanRequest& request);
  /// Copies the forward part of `base` into an empty plan, for the same forward graph.
  StepBuilder(Plan& plan, const Plan& base, const Lowered& lowered, const PlanRequest& request);

  /// Has steps whose sizes are those of `earlier`, a plan of the same graph or null, take its
  /// kernels.
  void take_steps_of(const Plan* earlier);
  void build_forward();
  void build_backward();

 private:
  void bind_arguments();
  void add_step(const StepNodes& nodes, Region region);
  void add_view(const StepNodes& nodes, Region region);
  uint32_t number_of(const StepNodes& nodes) const {
    return static_cast<uint32_t>(&nodes - lowered_.steps.data());
  }
  void add_kernel_step(const StepNodes& nodes, Region region);
  /// The operands of a step: by position, of a group each once.
  TensorList operands_of(const StepNodes& nodes, Region region);
  /// The strides, by output, in which a pointwise step of a GPU should write its results, so that
  /// no copy to them follows; empty where they are those of its operands. A copy is a launch of its
  /// own.
  std::vector<Sizes> wanted_strides(const StepNodes& nodes);
  Sizes wanted_strides_of(const Value& result);
  /// Of a gradient: those of the argument.
  Sizes strides_of_gradient(const Value& value, size_t gradient);
  /// Of a forward output: those of the request, or contiguous ones.
  Sizes strides_of_output(const Value& value, size_t index);
  /// Takes kernel and facts of an earlier step of the same form whose operands have the same
  /// layouts. Returns the bytes of its workspace, or nothing if there is no such step.
  std::optional<int64_t> plan_as_before(const StepNodes& nodes, const std::vector<Sizes>& wanted,
                                        PlannedStep& step);
  /// Takes those of `earlier`. Returns the bytes of its workspace.
  static int64_t take(const Plan& plan, const PlannedStep& earlier, PlannedStep& step);
  /// The step of these nodes in the plan of other sizes, if its results have the same sizes.
  const PlannedStep* twin_of(const StepNodes& nodes, const std::vector<Sizes>& wanted);
  /// `given`: the layouts of the operands of `earlier` before copies; empty if none was copied.
  bool is_alike(const PlannedStep& earlier, const std::vector<Layout>& given,
                const StepNodes& nodes, const PlannedStep& step);
  /// Returns the bytes of the workspace.
  int64_t plan_alone(const StepNodes& nodes, std::vector<Sizes> wanted, PlannedStep& step);
  StepFacts make_facts(const StepNodes& nodes, const TensorList& in, Region region);
  void fill_operands(const StepNodes& nodes, StepFacts& facts, const TensorList& in, Region region);
  /// Copies the operands whose layouts the kernel does not take. Returns the layouts of all before,
  /// or none if none was copied.
  std::vector<Layout> conform_operands(PlannedStep& step, StepFacts& facts);
  void copy_operand(PlannedStep& step, size_t i);
  void choose_kernel(PlannedStep& step, const StepFacts& facts, const StepNodes& nodes);
  void add_results(const StepNodes& nodes, PlannedStep& step);
  StorageId new_temporary(Region region, int64_t bytes, StorageName name);

  TensorId tensor_of(const Value* value, Region region);
  StorageId new_storage(PlannedStorage::Role role, int64_t bytes, StorageName name);
  TensorId new_tensor(const Value* value, DType dtype, Layout layout, StorageId storage);
  /// For backward: `tensor`, or its value before the run if it aliases a mutated argument.
  TensorId with_old_content(TensorId tensor);
  TensorId copy_to(TensorId tensor, const Layout& layout, Region region, StorageId storage = {});
  void plan_copy(const PlannedTensor& source, const Layout& layout, PlannedStep& step);
  TensorId contiguous_copy(TensorId tensor, Region region, const std::string& why);
  TensorId copy_for_view(TensorId source, const Node& node, Region region);
  void note_copy(StorageId storage, const std::string& why);

  /// Claims the gradients that `node` computes.
  void claim_results(const Node& node);
  /// Makes `tensor` a result with these strides: in place if possible, else by a copy.
  TensorId claim(TensorId tensor, PlannedStorage::Role role, size_t index, const Sizes& strides,
                 Region region);
  /// Claims the other results: outputs, and gradients that no backward node computes.
  void claim_rest(Region region);
  /// Copies the arguments that forward mutates and backward reads.
  void protect_mutated_arguments();
  /// A new value of a mutated argument.
  struct Write {
    TensorId source, target;
  };
  /// Copies the new values into the mutated arguments, at the end of forward.
  void write_back();
  /// Takes out those that the device can copy in one step.
  void write_together(std::vector<Write>& writes);

  const Sizes& sizes_of(const Value* value);

  Plan& plan_;
  const Lowered& lowered_;
  const PlanRequest& request_;
  PerValue<TensorId> tensor_of_value_;  // none: not computed yet
  PerValue<std::optional<Sizes>> sizes_;
  /// A step that was planned.
  struct Known {
    size_t step = 0;
    std::vector<Layout> given;  // by operand, before copies; empty if none was copied
    std::vector<Sizes> wanted;  // by output
  };

  std::vector<std::vector<Known>> of_form_;  // by form
  static constexpr size_t kMostCopies = 32;
  std::vector<size_t> copies_;     // steps that copy between different layouts
  const Plan* earlier_ = nullptr;  // of other sizes
  size_t next_earlier_ = 0;        // step of it
  std::unordered_map<const Value*, std::vector<size_t>> gradients_of_;  // of the plan
  std::unordered_map<const Value*, size_t> output_of_;                  // by forward result
  std::optional<EdgeLayouts> edges_;                           // once the arguments are bound
  std::unordered_map<TensorId, TensorId> in_old_content_;      // tensor -> its value before the run
  std::unordered_map<TensorId, TensorId> contiguous_copy_[2];  // per region: tensor -> its copy
};

}  // namespace ortmodule
