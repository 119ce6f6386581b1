#include "plan/replan.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ops/op_def.h"
#include "plan/step_builder.h"
#include "plan/step_layouts.h"

namespace ortmodule {
namespace {

bool can_be_continued(const Lowered& lowered) {
  return lowered.device == Device::Host && lowered.forward_steps == lowered.steps.size() &&
         lowered.edges.empty();
}

/// Each member that returns bool is false where the plan would differ in more than sizes.
class Replanner {
 public:
  Replanner(const Lowered& lowered, const PlanRequest& request, const Plan& earlier)
      : lowered_(lowered), request_(request), earlier_(earlier) {}

  Replanned run() {
    if (!can_continue()) return {};
    plan_ = std::make_shared<Plan>(earlier_);
    plan_->symbols = request_.symbols;
    changed_.assign(plan_->tensors.size(), 0);
    if (!take_arguments() || !follow() || !claim_outputs()) return {};
    if (moves_)
      restore_draft();
    else
      resize_arguments();
    return {std::move(plan_), moves_};
  }

 private:
  bool can_continue() {
    if (!can_be_continued(lowered_) || earlier_.graph != lowered_.graph ||
        earlier_.draft.storages.empty() || !earlier_.old_contents.empty() ||
        !earlier_.mutated_arguments.empty())
      return false;
    const auto& now = request_.symbols.entries();
    const auto& before = earlier_.symbols.entries();
    if (now.size() != before.size()) return false;
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i].first != before[i].first) return false;
      if (now[i].second == before[i].second) continue;
      const auto bit = static_cast<size_t>(std::ranges::find(lowered_.symbols, now[i].first) -
                                           lowered_.symbols.begin());
      if (bit >= 64) return false;
      changed_symbols_ |= uint64_t{1} << bit;
    }
    const auto first = std::ranges::find_if(earlier_.steps, [](const PlannedStep& step) {
      return step.lowered != PlannedStep::kInserted;
    });  // the threads of all
    return first == earlier_.steps.end() || first->facts->threads == request_.threads;
  }

  Sizes sizes_of(const Value& value) const {
    Sizes sizes = evaluate(value.dims, request_.symbols);
    check_sizes(value, sizes);
    return sizes;
  }

  bool mentions_changed(uint32_t step) const {
    return (lowered_.steps[step].symbols & changed_symbols_) != 0;
  }

  bool take_arguments() {
    const auto& inputs = lowered_.graph->inputs();
    if (request_.arguments.size() != inputs.size()) return false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorId tensor(i);  // those of the arguments come first
      Layout layout = request_.arguments[i];
      layout.offset = 0;
      if (plan_->tensors[tensor].layout == layout) continue;
      if (layout.sizes != evaluate(inputs[i].value->dims, request_.symbols)) return false;
      const int64_t bytes = storage_bytes(layout, inputs[i].value->dtype);
      plan_->draft.storages[StorageId(i)].bytes = plan_->storages[StorageId(i)].bytes = bytes;
      set_layout(tensor, std::move(layout));
    }
    return true;
  }

  void set_layout(TensorId tensor, Layout layout) {
    PlannedTensor& t = plan_->tensors[tensor];
    if (t.layout == layout) return;
    t.layout = std::move(layout);
    changed_[tensor] = 1;
  }

  /// Steps and views in the order of the tensors that they make.
  bool follow() {
    auto view = plan_->views.begin();
    const auto views_before = [&](size_t tensor) {
      for (; view != plan_->views.end() && view->result.index() < tensor; ++view)
        if (!follow_view(*view)) return false;
      return true;
    };
    for (PlannedStep& step : plan_->steps)
      if ((!step.out.empty() && !views_before(step.out[0].index())) || !follow_step(step))
        return false;
    return views_before(plan_->tensors.size());
  }

  bool follow_view(const PlannedView& view) {
    if (!changed_[view.source] && !mentions_changed(view.lowered)) return true;
    const StepNodes& nodes = lowered_.steps[view.lowered];
    const Node& node = *nodes.nodes.front();
    std::optional<Attrs> resolved;
    if (nodes.reads_symbols) resolved = node.attrs.resolve(request_.symbols);
    std::optional<Layout> layout =
        nodes.op->view(plan_->tensors[view.source].layout, resolved ? *resolved : node.attrs,
                       sizes_of(*node.output(view.output)), view.output);
    if (!layout) return false;
    set_layout(view.result, std::move(*layout));
    return true;
  }

  bool follow_step(PlannedStep& step) {
    const bool reads_changed =
        std::ranges::any_of(step.in, [&](TensorId in) { return in && changed_[in]; });
    // With another layout or storage of its source, a copy may not be wanted.
    if (step.lowered == PlannedStep::kInserted) return !reads_changed && !is_resized(step.in[0]);
    if (!reads_changed && !mentions_changed(step.lowered)) return true;
    if (!take_twin(step) && !plan_again(step)) return false;
    return set_results(step);
  }

  /// A step that was planned again, as it was before.
  struct Twin {
    std::shared_ptr<const StepFacts> earlier;
    const PlannedStep* step;
    int64_t workspace_bytes;
  };

  /// Takes facts of a step that was planned again before, if both were alike and are so still.
  bool take_twin(PlannedStep& step) {
    for (const Twin& twin : twins_) {
      if (twin.earlier != step.facts) continue;
      const auto& inputs = twin.step->facts->inputs;
      bool alike = true;
      for (size_t i = 0; i < step.in.size() && alike; ++i)
        alike = !step.in[i] || plan_->tensors[step.in[i]].layout == inputs[i].layout;
      if (!alike) continue;
      step.facts = twin.step->facts;
      step.prepared = twin.step->prepared;
      return resize_workspace(step, twin.workspace_bytes);
    }
    return false;
  }

  bool plan_again(PlannedStep& step) {
    const KernelDef& kernel = *step.kernel;
    // What a library takes may have been measured since.
    if (kernel.library_bytes || kernel.inexact) return false;
    const StepNodes& nodes = lowered_.steps[step.lowered];
    StepFacts facts = *step.facts;
    resize_facts(step, nodes, facts);
    for (size_t i = 0; i < step.in.size(); ++i)
      if (step.in[i] && !takes_layout(kernel, i, facts.inputs[i].layout)) return false;
    std::string why;
    if (select_kernel(kernel.op, lowered_.device, facts, &why) != step.kernel) return false;
    choose_output_layouts(nodes.pointwise, kernel, {}, facts);  // of a host
    if (kernel.prepare) step.prepared = kernel.prepare(facts);
    const auto bytes =
        kernel.workspace_bytes ? static_cast<int64_t>(kernel.workspace_bytes(facts)) : 0;
    if (!resize_workspace(step, bytes)) return false;
    twins_.push_back(
        {std::exchange(step.facts, std::make_shared<const StepFacts>(std::move(facts))), &step,
         bytes});
    return true;
  }

  /// Facts of the step's sizes now, with row-major results.
  void resize_facts(const PlannedStep& step, const StepNodes& nodes, StepFacts& facts) {
    for (size_t i = 0; i < step.in.size(); ++i)
      if (step.in[i]) facts.inputs[i].layout = plan_->tensors[step.in[i]].layout;
    for (size_t n = 0; n < nodes.nodes.size(); ++n) {
      const Node& node = *nodes.nodes[n];
      NodeFacts& known = facts.nodes[n];
      if (nodes.reads_symbols) resolve_symbols(node, known);
      for (size_t o = 0; o < node.outputs().size(); ++o) {
        known.output_sizes[o] = sizes_of(*node.output(o));
        if (known.outputs[o] < 0) continue;
        facts.outputs[static_cast<size_t>(known.outputs[o])].layout =
            contiguous_layout(known.output_sizes[o]);
      }
    }
  }

  void resolve_symbols(const Node& node, NodeFacts& facts) {
    facts.attrs = node.attrs.resolve(request_.symbols);
    for (size_t i = 0; i < facts.inputs.size(); ++i) {
      if (facts.inputs[i].kind != OperandRef::Kind::Literal) continue;
      if (const auto* number = std::get_if<DimExpr>(&node.input(i)->literal()))
        facts.inputs[i].literal = static_cast<double>(number->evaluate(request_.symbols));
    }
  }

  bool resize_workspace(const PlannedStep& step, int64_t bytes) {
    if ((bytes > 0) != static_cast<bool>(step.workspace_storage)) return false;
    if (bytes > 0) resize(step.workspace_storage, bytes);
    return true;
  }

  void resize(StorageId storage, int64_t bytes) {
    int64_t& known = plan_->draft.storages[storage].bytes;
    moves_ = moves_ || known != bytes;
    known = bytes;
  }

  bool is_resized(TensorId tensor) const {
    const StorageId storage = plan_->draft.storage_of[tensor];
    return plan_->draft.storages[storage].bytes != earlier_.draft.storages[storage].bytes;
  }

  bool set_results(const PlannedStep& step) {
    size_t next = 0;
    for (const NodeFacts& node : step.facts->nodes)
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        if (node.outputs[o] < 0) continue;
        const OperandFacts& facts = step.facts->outputs[next];
        const TensorId tensor = step.out[next++];
        const bool left_out = (step.kernel->allocates_outputs || step.kernel->leaves_out_unused) &&
                              !node.output_used[o];
        set_layout(tensor, facts.layout);
        moves_ = moves_ || changed_[tensor] != 0;
        resize(plan_->draft.storage_of[tensor],
               left_out ? 0 : storage_bytes(facts.layout, facts.dtype));
      }
    return true;
  }

  /// Outputs have the layouts that callers see, and storages of their own: see StepBuilder::claim.
  bool claim_outputs() {
    for (size_t i = 0; i < plan_->output_tensors.size(); ++i) {
      const TensorId tensor = plan_->output_tensors[i];
      if (!tensor) continue;
      Layout& layout = plan_->tensors[tensor].layout;
      const StorageId storage = plan_->draft.storage_of[tensor];
      const int64_t bytes = storage_bytes(layout, plan_->tensors[tensor].dtype);
      if (plan_->draft.storages[storage].bytes != bytes) return false;
      if (!changed_[tensor]) continue;
      Sizes wanted = contiguous_strides(layout.sizes);
      if (i < request_.output_strides.size() && !request_.output_strides[i].empty())
        wanted = request_.output_strides[i];
      if (layout.offset != 0 || !is_dense(layout) || !same_strides(layout, wanted)) return false;
      layout.strides = std::move(wanted);
    }
    return true;
  }

  void restore_draft() {
    for (TensorId tensor : plan_->tensors.ids())
      plan_->tensors[tensor].storage = plan_->draft.storage_of[tensor];
    for (StorageId id : plan_->storages.ids()) {
      PlannedStorage& storage = plan_->storages[id];
      const PlanDraft::Storage& draft = plan_->draft.storages[id];
      storage.role = draft.role;
      storage.index = draft.index;
      storage.bytes = draft.bytes;
      storage.buffer = {};
      storage.offset_bytes = 0;
      storage.becomes_gradient = false;
    }
    plan_->buffers.clear();
  }

  void resize_arguments() {
    for (PlannedBuffer& buffer : plan_->buffers)
      if (buffer.kind == BufferKind::Argument)
        buffer.bytes = plan_->storages[StorageId(buffer.index)].bytes;
  }

  const Lowered& lowered_;
  const PlanRequest& request_;
  const Plan& earlier_;
  std::shared_ptr<Plan> plan_;
  uint64_t changed_symbols_ = 0;
  IdVector<TensorId, uint8_t> changed_;  // by tensor: its layout
  std::vector<Twin> twins_;
  bool moves_ = false;
};

}  // namespace

void keep_draft(Plan& plan, const Lowered& lowered) {
  if (!can_be_continued(lowered)) return;
  PlanDraft& draft = plan.draft;
  draft.storage_of.clear();
  draft.storages.clear();
  draft.storage_of.reserve(plan.tensors.size());
  draft.storages.reserve(plan.storages.size());
  for (const PlannedTensor& tensor : plan.tensors) draft.storage_of.add(tensor.storage);
  for (const PlannedStorage& storage : plan.storages)
    draft.storages.add({storage.role, storage.index, storage.bytes});
}

Replanned replan(const Lowered& lowered, const PlanRequest& request, const Plan& earlier) {
  return Replanner(lowered, request, earlier).run();
}

}  // namespace ortmodule
