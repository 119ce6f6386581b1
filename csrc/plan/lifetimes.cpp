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
  for (int s = 0; s < plan.step_count(); ++s) {
    const PlannedStep& step = plan.step(s);
    for (TensorId tensor : step.in)
      if (tensor) touch(plan.storage_of(tensor), s);
    for (TensorId tensor : step.out) touch(plan.storage_of(tensor), s);
    if (step.workspace_storage) touch(plan.storages[step.workspace_storage], s);
  }
  plan.saved_arguments.clear();
  plan.saved_outputs.clear();
  for (PlannedStorage& storage : plan.storages) {
    if (storage.last_step < plan.forward_steps) continue;
    if (storage.role == Role::Forward) storage.role = Role::Saved;
    if (storage.role == Role::Argument &&
        plan.graph->inputs()[storage.index].kind != InputKind::GradOutput)
      plan.saved_arguments.push_back(storage.index);
    if (storage.role == Role::Output) plan.saved_outputs.push_back(storage.index);
  }
}

}  // namespace ortmodule
