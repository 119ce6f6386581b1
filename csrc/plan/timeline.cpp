#include "plan/timeline.h"

#include <algorithm>

namespace ortmodule {

std::vector<TimelineItem> timeline_of(const Plan& plan) {
  using Role = PlannedStorage::Role;
  IdVector<StorageId, const Value*> first_values(plan.storages.size(), nullptr);
  for (const PlannedTensor& tensor : plan.tensors) {
    const Value*& slot = first_values[tensor.storage];
    if (!slot) slot = tensor.value;
  }
  std::vector<TimelineItem> items;
  for (StorageId id : plan.storages.ids()) {
    const PlannedStorage& storage = plan.storages[id];
    const bool elsewhere = storage.role == Role::Argument || storage.role == Role::Host;
    if (elsewhere || storage.bytes == 0) continue;
    const bool handed_over = storage.role == Role::Output || storage.role == Role::Gradient;
    items.push_back({id, first_values[id] ? first_values[id]->producer() : nullptr, storage.bytes,
                     std::max(storage.first_step, 0),
                     handed_over ? plan.step_count() - 1 : storage.last_step});
  }
  return items;
}

const char* role_name(PlannedStorage::Role role) {
  switch (role) {
    case PlannedStorage::Role::Argument: return "argument";
    case PlannedStorage::Role::Output: return "output";
    case PlannedStorage::Role::Gradient: return "gradient";
    case PlannedStorage::Role::Saved: return "saved";
    case PlannedStorage::Role::Forward: return "forward";
    case PlannedStorage::Role::Backward: return "backward";
    case PlannedStorage::Role::Host: return "host";
  }
  return "?";
}

}  // namespace ortmodule
