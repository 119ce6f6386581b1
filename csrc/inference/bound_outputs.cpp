#include "inference/bound_outputs.h"

#include <algorithm>
#include <set>

#include "inference/copy_elements.h"
#include "plan/replay.h"

namespace ortmodule {
namespace {

bool is_addressable(const HostTarget& target) {
  const bool aligned = reinterpret_cast<uintptr_t>(target.data) % size_of(target.dtype) == 0;
  return aligned && canonical_strides(target.sizes, target.strides).empty();
}

// Whether `step` may write `out` over `argument` at the same address: its kernel reads each element
// before it writes it, and reads the argument in no other way.
bool works_in_place(const Plan& plan, const PlannedStep& step, StorageId argument, StorageId out) {
  if (!step.kernel->inplace) return false;
  const PlannedTensor* target = nullptr;
  for (TensorId tensor : step.out)
    if (plan.tensors[tensor].storage == out) target = &plan.tensors[tensor];
  if (!target) return false;
  const int only = step.kernel->inplace_operand;
  for (size_t i = 0; i < step.in.size(); ++i) {
    if (!step.in[i]) continue;
    const PlannedTensor& operand = plan.tensors[step.in[i]];
    if (operand.storage != argument) continue;
    if (only >= 0 && static_cast<size_t>(only) != i) return false;
    if (operand.layout != target->layout || size_of(operand.dtype) != size_of(target->dtype))
      return false;
  }
  return true;
}

// Whether the steps still need the arguments' content when they write to the target's memory.
bool destroys_an_argument(const Plan& plan, const std::vector<const void*>& arguments,
                          const HostTarget& target, StorageId output) {
  const ByteRange written =
      byte_range(target.data, target.sizes, target.strides, size_of(target.dtype));
  const int first = plan.buffers[plan.storages[output].buffer].first_step;
  for (StorageId id : plan.storages.ids()) {
    const PlannedStorage& storage = plan.storages[id];
    if (id.index() >= arguments.size()) break;  // arguments come first
    const auto begin = reinterpret_cast<uintptr_t>(arguments[storage.index]);
    const ByteRange read{begin, begin + static_cast<uintptr_t>(storage.bytes)};
    if (begin == 0 || storage.last_step < first || !written.overlaps(read)) continue;
    const bool in_place = storage.last_step == first && arguments[storage.index] == target.data &&
                          works_in_place(plan, plan.step(first), id, output);
    if (!in_place) return true;
  }
  return false;
}

}  // namespace

bool can_lend(const Plan& plan, size_t i, const HostTarget& target) {
  const BufferId buffer = plan.storage_of(plan.output_tensors[i]).buffer;
  return buffer && !plan.buffers[buffer].kernel_allocated && is_addressable(target);
}

int64_t peak_with_targets(const Plan& plan, const HostTargets& targets) {
  std::vector<int64_t> live = live_bytes(plan, ReplayMode::Once);
  std::set<BufferId> lent;
  for (size_t i = 0; i < targets.size(); ++i)
    if (targets[i] && can_lend(plan, i, *targets[i]))
      lent.insert(plan.storage_of(plan.output_tensors[i]).buffer);
  for (const BufferId id : lent) {
    const PlannedBuffer& buffer = plan.buffers[id];
    if (!buffer.owned()) continue;
    for (int s = buffer.first_step; s <= buffer.last_step; ++s)
      live.at(static_cast<size_t>(s)) -= buffer.bytes;
  }
  int64_t peak = 0;
  for (int s = 0; s < plan.forward_steps; ++s)
    peak = std::max(peak, live.at(static_cast<size_t>(s)) + plan.step(s).library_bytes);
  return peak;
}

std::vector<bool> lend_targets(const Plan& plan, const std::vector<const void*>& arguments,
                               const HostTargets& targets, Frame& frame) {
  std::vector<bool> lent(targets.size(), false);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i]) continue;
    const HostTarget& target = *targets[i];
    const StorageId storage = plan.tensors[plan.output_tensors[i]].storage;
    if (!can_lend(plan, i, target) || destroys_an_argument(plan, arguments, target, storage))
      continue;
    frame.lend(plan.storages[storage].buffer, target.data);
    lent[i] = true;
  }
  return lent;
}

}  // namespace ortmodule
