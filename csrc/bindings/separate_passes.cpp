#include "bindings/separate_passes.h"

#include <algorithm>
#include <utility>

#include "bindings/engine.h"
#include "bindings/run_state.h"

namespace ortmodule::bindings {
namespace {

using Role = PlannedStorage::Role;

at::Tensor bytes_at(void* data, int64_t bytes, const DeviceRuntime& runtime) {
  return tensor_from(Buffer(data, bytes, nullptr, [](void*) {}), DType::UInt8,
                     Layout{{bytes}, {1}, 0}, runtime);
}

/// The storages of activations that backward reads, other than arguments and outputs.
std::vector<const PlannedStorage*> activations(const Plan& plan) {
  std::vector<const PlannedStorage*> found;
  for (const PlannedStorage& storage : plan.storages) {
    const bool read = storage.last_step >= plan.forward_steps || storage.role == Role::Gradient;
    const bool saved = storage.first_step >= 0 && storage.first_step < plan.forward_steps;
    const bool owned = storage.buffer && plan.buffers[storage.buffer].owned();
    if (read && saved && owned && storage.role != Role::Output) found.push_back(&storage);
  }
  return found;
}

/// Releases the arguments and outputs that no pass of `plan` reads.
void release_saved(RunState& state, const Plan& plan) {
  const auto release = [&](const std::vector<size_t>& all, const std::vector<size_t>& read,
                           size_t first) {
    for (size_t i = 0; i < all.size(); ++i)
      if (std::ranges::find(read, all[i]) == read.end()) state.saved[first + i] = {};
  };
  const Plan& forward = state.plan();
  release(forward.saved_arguments, plan.saved_arguments, 0);
  release(forward.saved_outputs, plan.saved_outputs, forward.saved_arguments.size());
}

/// Whether what forward saved can be taken out of the run.
bool can_keep(const RunState& state) {
  return !state.host_copies && !state.piece.runner().graph_counts();
}

}  // namespace

void check_separate(const RunState& state, const std::vector<bool>& arrived) {
  bool freed = false;
  for (size_t k = 0; k < state.ended.size(); ++k) freed |= arrived[k] && state.ended[k];
  TORCH_CHECK(!freed, kSecondBackward);
}

std::vector<bool> outputs_behind(RunState& state, const std::vector<bool>& arrived) {
  Session& session = state.piece.session();
  std::vector<bool> left = session.differentiable_outputs();
  if (arrived == left || !can_keep(state)) return {};
  const std::vector<size_t>& groups = session.gradient_groups();
  for (size_t k = 0; k < left.size(); ++k) {
    left[k] = left[k] && !(k < state.ended.size() && state.ended[k]);
    for (size_t other = 0; left[k] && other < arrived.size(); ++other)
      left[k] = !(arrived[other] && groups[other] == groups[k]);
  }
  if (std::ranges::find(left, true) == left.end()) return {};
  return left;
}

void keep_for(RunState& state, const std::vector<bool>& left) {
  const std::vector<bool>& all = state.piece.session().differentiable_outputs();
  state.ended.resize(all.size());
  for (size_t k = 0; k < all.size(); ++k) state.ended[k] = all[k] && !left[k];
  const Plan& plan = *state.piece.session().backward_program(*state.entry, left, false).plan;
  state.kept_bytes = 0;
  for (const PlannedStorage* storage : activations(plan)) {
    char* data = static_cast<char*>(state.frame.address(storage->buffer)) + storage->offset_bytes;
    const int64_t bytes = storage->bytes;
    state.kept.push_back({storage->buffer, storage->offset_bytes,
                          bytes_at(data, bytes, state.piece.runtime()).clone()});
    state.kept_bytes += bytes;
  }
  release_saved(state, plan);
}

void put_back(RunState& state) {
  const auto& buffers = state.backward->plan->buffers;
  std::vector<BufferId> there;
  for (const KeptActivation& kept : std::exchange(state.kept, {})) {
    if (std::ranges::find(there, kept.buffer) == there.end()) {
      there.push_back(kept.buffer);
      state.frame.restore(kept.buffer,
                          state.piece.runtime().allocator().allocate(buffers[kept.buffer].bytes));
    }
    char* data = static_cast<char*>(state.frame.address(kept.buffer)) + kept.offset_bytes;
    bytes_at(data, kept.bytes.numel(), state.piece.runtime()).copy_(kept.bytes);
  }
}

}  // namespace ortmodule::bindings
