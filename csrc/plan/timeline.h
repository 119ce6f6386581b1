// The tensors of a plan over its steps, for reports.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace ortmodule {

/// Memory of the engine that lives from one step to another.
struct TimelineItem {
  StorageId storage;
  const Node* producer = nullptr;  // of its first value; null for a workspace
  int64_t bytes = 0;
  int first_step = 0;
  int last_step = 0;  // outputs and gradients stay to the end
};

/// All of them but arguments and what is on the host, in the order of the plan's storages.
std::vector<TimelineItem> timeline_of(const Plan& plan);

/// "output", "gradient", "saved", "forward", "backward", "host" or "argument".
const char* role_name(PlannedStorage::Role role);

}  // namespace ortmodule
