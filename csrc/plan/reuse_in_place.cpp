#include "plan/reuse_in_place.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace ortmodule {
namespace {

using Role = PlannedStorage::Role;

/// The role that an operand must have for its memory to be reused by a result of that role. Outputs
/// and gradients may reuse temporaries of their region: a sum of gradients is then accumulated in
/// the memory that is returned.
std::optional<Role> operand_role(Role result) {
  switch (result) {
    case Role::Forward:
    case Role::Output: return Role::Forward;
    case Role::Backward:
    case Role::Gradient: return Role::Backward;
    default: return std::nullopt;
  }
}

/// The operand whose storage output `out` of step `s` may reuse, or none.
TensorId reusable_operand(const Plan& plan, const PlannedStep& step, int s, TensorId out,
                          bool overwrite_saved, bool forward_is_fixed) {
  const PlannedTensor& target = plan.tensors[out];
  const PlannedStorage& own = plan.storages[target.storage];
  const std::optional<Role> wanted = operand_role(own.role);
  if (!wanted || own.first_step != s) return {};
  for (size_t i = 0; i < step.in.size(); ++i) {
    const TensorId in = step.in[i];
    const int only = step.kernel->inplace_operand;
    if (!in || (only >= 0 && static_cast<size_t>(only) != i)) continue;
    const PlannedTensor& source = plan.tensors[in];
    const PlannedStorage& theirs = plan.storages[source.storage];
    // A gradient is returned to the caller, so it cannot be part of a saved segment.
    const bool apart = !forward_is_fixed || theirs.becomes_gradient;
    const bool saved = overwrite_saved && theirs.role == Role::Saved &&
                       (own.role == Role::Backward || (own.role == Role::Gradient && apart));
    const bool dies =
        (theirs.role == *wanted || saved) && theirs.last_step == s && theirs.first_step < s;
    const bool kernel_allocated =
        own.kernel_allocated || (own.role != *wanted && theirs.kernel_allocated);
    const bool fits = !kernel_allocated && theirs.bytes == own.bytes &&
                      source.layout == target.layout &&
                      size_of(source.dtype) == size_of(target.dtype);
    if (!dies || !fits) continue;
    // No other operand may alias the reused storage, except elementwise, with the same layout.
    bool aliased = false;
    for (size_t k = 0; k < step.in.size(); ++k) {
      if (k == i || !step.in[k]) continue;
      const PlannedTensor& o = plan.tensors[step.in[k]];
      aliased =
          aliased || (o.storage == source.storage && (only >= 0 || !(o.layout == source.layout)));
    }
    const bool taken = std::any_of(step.out.begin(), step.out.end(), [&](TensorId other) {
      return plan.tensors[other].storage == source.storage;
    });
    if (!aliased && !taken) return in;
  }
  return {};
}

/// The tensors of each storage, in one array of links.
class Views {
 public:
  explicit Views(const Plan& plan) : first_(plan.storages.size()), next_(plan.tensors.size()) {
    for (TensorId tensor : plan.tensors.ids())
      if (const StorageId storage = plan.tensors[tensor].storage)
        next_[tensor.index()] = std::exchange(first_[storage.index()], tensor);
  }

  /// Make the tensors of one storage tensors of another.
  void move(Plan& plan, StorageId from, StorageId to) {
    for (TensorId tensor = std::exchange(first_[from.index()], {}); tensor;) {
      plan.tensors[tensor].storage = to;
      const TensorId rest = std::exchange(next_[tensor.index()], first_[to.index()]);
      first_[to.index()] = std::exchange(tensor, rest);
    }
  }

 private:
  std::vector<TensorId> first_;  // by storage
  std::vector<TensorId> next_;   // by tensor
};

}  // namespace

void reuse_in_place(Plan& plan, bool overwrite_saved, bool forward_is_fixed) {
  Views views(plan);
  for (int s = 0; s < plan.step_count(); ++s) {
    const PlannedStep& step = plan.step(s);
    if (!step.kernel->inplace) continue;
    for (TensorId out : step.out) {
      const TensorId in = reusable_operand(plan, step, s, out, overwrite_saved, forward_is_fixed);
      if (!in) continue;
      const StorageId from = plan.tensors[out].storage;
      const StorageId to = plan.tensors[in].storage;
      PlannedStorage& gone = plan.storages[from];
      PlannedStorage& stays = plan.storages[to];
      stays.last_step = std::max(stays.last_step, gone.last_step);
      // Reused for a temporary, a saved storage stays in its segment.
      const bool becomes_gradient = stays.role == Role::Saved && gone.role == Role::Gradient;
      stays.becomes_gradient = stays.becomes_gradient || becomes_gradient;
      if (stays.role != Role::Saved || becomes_gradient) {
        stays.role = gone.role;
        stays.index = gone.index;
      }
      gone.role = gone.role == Role::Gradient ? Role::Backward
                  : gone.role == Role::Output ? Role::Forward
                                              : gone.role;
      gone.bytes = 0;
      gone.first_step = gone.last_step = s;
      views.move(plan, from, to);
    }
  }
}

}  // namespace ortmodule
