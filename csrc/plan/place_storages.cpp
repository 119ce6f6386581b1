#include "plan/place_storages.h"

#include <algorithm>
#include <bit>
#include <map>

#include "plan/pack.h"
#include "plan/replay.h"

namespace ortmodule {
namespace {

using Role = PlannedStorage::Role;

class Placer {
 public:
  Placer(Plan& plan, const Plan* base, const PlacementOptions& options)
      : plan_(plan), base_(base), options_(options) {}

  void run() {
    if (base_) {
      keep_forward_of_base();
    } else {
      place_arguments();
      place_outputs();
      place_saved();
      place_on_host();
      place_gradients(Region::Forward);
      place_transients(Role::Forward, 0, plan_.forward_steps);
    }
    place_gradients(Region::Backward);
    place_transients(Role::Backward, plan_.forward_steps, plan_.step_count());
  }

 private:
  int last_step() const { return plan_.step_count() - 1; }

  BufferId add_buffer(BufferKind kind, size_t index, int64_t bytes, int first, int last) {
    return plan_.buffers.add({kind, index, bytes, first, last});
  }

  // Saved segments and outputs keep their buffers; only their last steps change.
  void keep_forward_of_base() {
    plan_.buffers.clear();
    for (const PlannedBuffer& buffer : base_->buffers) {
      const bool early = buffer.first_step < plan_.forward_steps;
      if (buffer.kind == BufferKind::BackwardArena ||
          (buffer.kind == BufferKind::Gradient && !early))
        break;
      plan_.buffers.add(buffer);
      // This backward pass may not compute the gradient, or may not overwrite the saved activation
      // that it would reuse.
      if (buffer.kind == BufferKind::Gradient) plan_.buffers.back().kind = BufferKind::Saved;
    }
    for (PlannedBuffer& buffer : plan_.buffers) {
      // Backward has no step where no gradient depends on the output gradients that arrived.
      if (buffer.kind == BufferKind::Saved || buffer.kind == BufferKind::Host)
        buffer.last_step = std::min(plan_.forward_steps, last_step());
      if (buffer.kind == BufferKind::Output) buffer.last_step = last_step();
    }
    for (const PlannedStorage& storage : plan_.storages) {
      const bool handed_over = storage.becomes_gradient && storage.role == Role::Gradient;
      const bool kept = storage.role == Role::Saved || storage.role == Role::Host;
      if ((!kept && !handed_over) || !storage.buffer) continue;
      PlannedBuffer& buffer = plan_.buffers[storage.buffer];
      buffer.last_step = handed_over ? last_step() : std::max(buffer.last_step, storage.last_step);
      if (!handed_over) continue;
      buffer.kind = BufferKind::Gradient;
      buffer.index = storage.index;
    }
  }

  void place_arguments() {
    for (PlannedStorage& storage : plan_.storages) {
      if (storage.role != Role::Argument) continue;
      const auto& input = plan_.graph->inputs()[storage.index];
      const bool grad = input.kind == InputKind::GradOutput;
      storage.buffer = add_buffer(grad ? BufferKind::OutputGrad : BufferKind::Argument,
                                  storage.index, storage.bytes, 0, last_step());
    }
  }

  void place_outputs() {
    for (PlannedStorage& storage : plan_.storages) {
      if (storage.role != Role::Output) continue;
      storage.buffer = add_buffer(BufferKind::Output, storage.index, storage.bytes,
                                  std::max(storage.first_step, 0), last_step());
      plan_.buffers.back().kernel_allocated = storage.kernel_allocated;
    }
  }

  /// Gradients whose buffers are allocated in that region. Those of forward come before its arenas,
  /// so that all backward plans know them by the same id.
  void place_gradients(Region region) {
    for (PlannedStorage& storage : plan_.storages) {
      const bool early = storage.becomes_gradient;
      if (storage.role != Role::Gradient || early != (region == Region::Forward)) continue;
      storage.buffer = add_buffer(BufferKind::Gradient, storage.index, storage.bytes,
                                  storage.first_step, last_step());
      plan_.buffers.back().kernel_allocated = storage.kernel_allocated;
    }
  }

  // Memory that a kernel allocates cannot be part of an arena.
  void place_kernel_allocated(PlannedStorage& storage, BufferKind kind) {
    storage.buffer = add_buffer(kind, 0, storage.bytes, storage.first_step, storage.last_step);
    storage.offset_bytes = 0;
    plan_.buffers.back().kernel_allocated = true;
  }

  // One block: it is registered with the device as a whole, and kept for the next run.
  void place_on_host() {
    std::vector<StorageId> members;
    for (StorageId id : plan_.storages.ids())
      if (plan_.storages[id].role == Role::Host) members.push_back(id);
    if (!members.empty()) pack_together(members, BufferKind::Host);
  }

  // Values with nearby last uses share a segment, so that backward frees memory as it proceeds.
  void place_saved() {
    std::vector<StorageId> saved;
    int64_t total = 0;
    for (StorageId id : plan_.storages.ids()) {
      PlannedStorage& storage = plan_.storages[id];
      if (storage.role != Role::Saved) continue;
      if (storage.kernel_allocated) {
        place_kernel_allocated(storage, BufferKind::Saved);
        continue;
      }
      saved.push_back(id);
      total += align_up(storage.bytes);
    }
    std::stable_sort(saved.begin(), saved.end(), [&](StorageId a, StorageId b) {
      return plan_.storages[a].last_step < plan_.storages[b].last_step;
    });
    constexpr int64_t kMostSegments = 96;
    constexpr int64_t kLeastBytes = 8 << 10;
    const int64_t target = std::max(total / kMostSegments, kLeastBytes);
    BufferId segment;
    for (StorageId id : saved) {
      PlannedStorage& storage = plan_.storages[id];
      if (!segment || plan_.buffers[segment].bytes >= target)
        segment = add_buffer(BufferKind::Saved, 0, 0, storage.first_step, storage.last_step);
      PlannedBuffer& buffer = plan_.buffers[segment];
      storage.buffer = segment;
      storage.offset_bytes = buffer.bytes;
      buffer.bytes += align_up(storage.bytes);
      buffer.first_step = std::min(buffer.first_step, storage.first_step);
      buffer.last_step = std::max(buffer.last_step, storage.last_step);
    }
  }

  // Several arenas, one per phase, follow the live bytes more closely than a single one, but need
  // more allocations. Takes the fewest phases that reach about the lowest peak.
  void place_transients(Role role, int begin, int end) {
    std::vector<StorageId> members;
    int64_t total = 0;
    for (StorageId id : plan_.storages.ids()) {
      PlannedStorage& storage = plan_.storages[id];
      if (storage.role != role || storage.bytes == 0 || storage.first_step < 0) continue;
      if (storage.kernel_allocated) {
        place_kernel_allocated(storage, kind_of(role));
        continue;
      }
      members.push_back(id);
      total += storage.bytes;
    }
    if (!options_.reuse || options_.placement == Placement::Apart)
      return place_apart(members, role);
    if (options_.placement == Placement::OneBlock) {
      if (members.empty()) return;
      place_phases(members, role, begin, end, 1);
      return round_up(plan_.buffers.back().bytes);
    }
    constexpr int64_t kWorthPhases = 1 << 20;
    constexpr int64_t kWorthAllocations = 400;  // more phases must lower the peaks by 1/400
    const size_t fixed = plan_.buffers.size();
    int best_phases = 1;
    int64_t best_peaks = -1;
    for (int phases : {1, 2, 4, 8, 16, 32, 64}) {
      if (phases > 1 && (total < kWorthPhases || end - begin < 2 * phases)) break;
      place_phases(members, role, begin, end, phases);
      const int64_t peaks = summed_peaks(begin, end);
      plan_.buffers.resize(fixed);
      if (best_peaks >= 0 && peaks >= best_peaks - best_peaks / kWorthAllocations) continue;
      best_peaks = peaks;
      best_phases = phases;
    }
    place_phases(members, role, begin, end, best_phases);
  }

  void place_phases(const std::vector<StorageId>& members, Role role, int begin, int end,
                    int phases) {
    const BufferKind kind = kind_of(role);
    std::map<int, std::vector<StorageId>> inside;  // by phase
    auto phase_of = [&](int step) {
      return std::min(phases - 1, static_cast<int>(int64_t{step - begin} * phases / (end - begin)));
    };
    for (StorageId id : members) {
      PlannedStorage& storage = plan_.storages[id];
      const int phase = phase_of(storage.first_step);
      if (phase == phase_of(storage.last_step)) {
        inside[phase].push_back(id);
        continue;
      }
      storage.offset_bytes = 0;
      storage.buffer =
          add_buffer(kind, 0, align_up(storage.bytes), storage.first_step, storage.last_step);
    }
    for (const auto& [phase, group] : inside) pack_together(group, kind);
  }

  /// Packs storages into one new buffer by their lifetimes.
  void pack_together(const std::vector<StorageId>& group, BufferKind kind) {
    std::vector<Block> blocks;
    for (StorageId id : group) {
      const PlannedStorage& storage = plan_.storages[id];
      blocks.push_back({storage.first_step, storage.last_step, storage.bytes});
    }
    const Packing packing = pack(blocks);
    const int first = std::ranges::min(blocks, {}, &Block::first).first;
    const int last = std::ranges::max(blocks, {}, &Block::last).last;
    const BufferId arena = add_buffer(kind, 0, packing.bytes, first, last);
    for (size_t k = 0; k < group.size(); ++k) {
      plan_.storages[group[k]].buffer = arena;
      plan_.storages[group[k]].offset_bytes = packing.offsets[k];
    }
  }

  // No storage shares memory with another: in a block one behind the other, or each by itself.
  void place_apart(const std::vector<StorageId>& members, Role role) {
    BufferId block;
    for (StorageId id : members) {
      PlannedStorage& storage = plan_.storages[id];
      const int64_t bytes = align_up(storage.bytes);
      const int last = options_.reuse ? storage.last_step : last_step();
      if (options_.placement == Placement::Apart || !block)
        block = add_buffer(kind_of(role), 0, 0, storage.first_step, last);
      PlannedBuffer& buffer = plan_.buffers[block];
      storage.buffer = block;
      storage.offset_bytes = buffer.bytes;
      buffer.bytes += bytes;
      buffer.first_step = std::min(buffer.first_step, storage.first_step);
    }
    if (options_.placement == Placement::OneBlock && block) round_up(plan_.buffers[block].bytes);
  }

  void round_up(int64_t& bytes) const {
    if (options_.power_of_two)
      bytes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
  }

  static BufferKind kind_of(Role role) {
    return role == Role::Forward ? BufferKind::ForwardArena : BufferKind::BackwardArena;
  }

  /// The cost of a placement of temporaries: the peak with gradient buffers plus the peak without
  /// them, as where gradients are accumulated into existing ones.
  int64_t summed_peaks(int begin, int end) const {
    if (begin == end) return 0;
    int64_t sum = 0;
    for (ReplayMode mode : {ReplayMode::Once, ReplayMode::NoGradients}) {
      const std::vector<int64_t> live = live_bytes(plan_, mode);
      sum += *std::max_element(live.begin() + begin, live.begin() + end);
    }
    return sum;
  }

  Plan& plan_;
  const Plan* base_;
  const PlacementOptions options_;
};

}  // namespace

void place_storages(Plan& plan, const Plan* base, const PlacementOptions& options) {
  Placer(plan, base, options).run();
}

}  // namespace ortmodule
