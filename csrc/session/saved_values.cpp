#include "session/saved_values.h"

#include <algorithm>

namespace ortmodule {

SavedValues::SavedValues(const Plan& plan, const Lowered& lowered)
    : plan_(plan), lowered_(lowered) {
  for (TensorId id : plan.tensors.ids())
    if (plan.tensors[id].value) by_name_.emplace(plan.tensors[id].value->name, id);
  // Storages are written over when their last reader is done, so only what backward reads counts.
  for (int s = plan.forward_steps; s < plan.step_count(); ++s) {
    for (TensorId operand : plan.step(s).in) add(operand);
    if (plan.step(s).kernel->op == "CopyToDevice") add_from_host(plan.step(s).in[0]);
  }
  for (const PlannedGradient& gradient : plan.gradients) add(gradient.tensor);
  for (const auto& [argument, copy] : plan.old_contents) {
    kept_.erase(plan.tensors[argument].value->name);
    if (is_kept(copy)) kept_[plan.tensors[argument].value->name] = copy;
  }
}

void SavedValues::add(TensorId tensor) {
  const auto storage = [&](TensorId id) { return plan_.tensors[id].storage; };
  while (tensor && plan_.tensors[tensor].value && is_kept(tensor)) {
    const Value* value = plan_.tensors[tensor].value;
    const Node* producer = value->producer();
    if (!producer || producer->region == Region::Forward) kept_.emplace(value->name, tensor);
    // A view that backward makes reads what forward saved.
    const Value* source = alias_of(value);
    if (!source) return;
    const auto found = by_name_.find(source->name);
    if (found == by_name_.end() || storage(found->second) != storage(tensor)) return;
    tensor = found->second;
  }
}

void SavedValues::add_from_host(TensorId copy) {
  const Value* value = plan_.tensors[copy].value->producer()->input(0);
  kept_[value->name] = copy;
}

bool SavedValues::is_kept(TensorId tensor) const {
  const PlannedStorage& storage = plan_.storage_of(tensor);
  const auto contains = [](const std::vector<size_t>& list, size_t index) {
    return std::ranges::find(list, index) != list.end();
  };
  switch (storage.role) {
    case PlannedStorage::Role::Argument: return contains(plan_.saved_arguments, storage.index);
    case PlannedStorage::Role::Output: return contains(plan_.saved_outputs, storage.index);
    default: break;
  }
  return storage.buffer && storage.first_step < plan_.forward_steps &&
         storage.last_step >= plan_.forward_steps;
}

TensorId SavedValues::find(const std::string& name) const {
  std::string lowered = name;
  for (auto next = lowered_.replaced.find(lowered); next != lowered_.replaced.end();
       next = lowered_.replaced.find(lowered))
    lowered = next->second;
  const auto found = kept_.find(lowered);
  return found == kept_.end() ? TensorId() : found->second;
}

}  // namespace ortmodule
