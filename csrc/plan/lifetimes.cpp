#include "plan/lifetimes.h"

#include <algorithm>

namespace ortmodule {
namespace {

using Role = PlannedStorage::Role;

void touch(PlannedStorage& storage, int step) {
  if (storage.first_step < 0 || step < storage.first_step) storage.first_step = step;
  storage.last_step = std::max(storage.last_step, step);
}

}  // namespace

void find_lifetimes(Plan& plan) {
  for (PlannedStorage& storage : plan.storages) storage.first_step = storage.last_step = -1;
  auto storage_of = [&](int tensor) -> PlannedStorage& {
    return plan.storages[static_cast<size_t>(plan.tensors[static_cast<size_t>(tensor)].storage)];
  };
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const PlannedStep& step = plan.steps[static_cast<size_t>(s)];
    for (int tensor : step.in)
      if (tensor >= 0) touch(storage_of(tensor), s);
    for (int tensor : step.out) touch(storage_of(tensor), s);
    if (step.workspace_storage >= 0)
      touch(plan.storages[static_cast<size_t>(step.workspace_storage)], s);
  }
  plan.saved_arguments.clear();
  plan.saved_outputs.clear();
  for (PlannedStorage& storage : plan.storages) {
    if (storage.last_step < plan.forward_steps) continue;
    if (storage.role == Role::Forward) storage.role = Role::Saved;
    if (storage.role == Role::Argument &&
        plan.graph->inputs()[static_cast<size_t>(storage.index)].kind != InputKind::GradOutput)
      plan.saved_arguments.push_back(storage.index);
    if (storage.role == Role::Output) plan.saved_outputs.push_back(storage.index);
  }
}

}  // namespace ortmodule
