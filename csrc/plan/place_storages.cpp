#include "plan/place_storages.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "plan/pack.h"

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

namespace {

/// The role of a transient operand that may become the result's memory: its own kind, or, for what
/// the caller receives, what is transient in the same region (a sum of gradients then grows in the
/// memory that is handed over).
std::optional<Role> operand_role(Role result) {
  switch (result) {
    case Role::Forward:
    case Role::Output: return Role::Forward;
    case Role::Backward:
    case Role::Gradient: return Role::Backward;
    default: return std::nullopt;
  }
}

/// The operand whose storage output tensor `out` of step `s` may take over, or -1.
int reusable_operand(const Plan& plan, const PlannedStep& step, int s, int out,
                     bool overwrite_saved, bool forward_is_fixed) {
  const PlannedTensor& target = plan.tensors[static_cast<size_t>(out)];
  const PlannedStorage& own = plan.storages[static_cast<size_t>(target.storage)];
  const std::optional<Role> wanted = operand_role(own.role);
  if (!wanted || own.first_step != s) return -1;
  for (size_t i = 0; i < step.in.size(); ++i) {
    const int in = step.in[i];
    const int only = step.kernel->inplace_operand;
    if (in < 0 || (only >= 0 && static_cast<size_t>(only) != i)) continue;
    const PlannedTensor& source = plan.tensors[static_cast<size_t>(in)];
    const PlannedStorage& theirs = plan.storages[static_cast<size_t>(source.storage)];
    // A gradient is handed over, so it needs memory that is not part of a segment.
    const bool apart = !forward_is_fixed || theirs.founds_gradient;
    const bool saved = overwrite_saved && theirs.role == Role::Saved &&
                       (own.role == Role::Backward || (own.role == Role::Gradient && apart));
    const bool dies =
        (theirs.role == *wanted || saved) && theirs.last_step == s && theirs.first_step < s;
    const bool adopted = own.adopted || (own.role != *wanted && theirs.adopted);
    const bool fits = !adopted && theirs.bytes == own.bytes && source.layout == target.layout &&
                      size_of(source.dtype) == size_of(target.dtype);
    if (!dies || !fits) continue;
    // A kernel that names the operand writes elsewhere than it has read of the others.
    bool read_otherwise = false;
    for (size_t k = 0; k < step.in.size(); ++k) {
      if (k == i || step.in[k] < 0) continue;
      const PlannedTensor& o = plan.tensors[static_cast<size_t>(step.in[k])];
      read_otherwise = read_otherwise ||
                       (o.storage == source.storage && (only >= 0 || !(o.layout == source.layout)));
    }
    const bool taken = std::any_of(step.out.begin(), step.out.end(), [&](int other) {
      return plan.tensors[static_cast<size_t>(other)].storage == source.storage;
    });
    if (!read_otherwise && !taken) return in;
  }
  return -1;
}

}  // namespace

void reuse_in_place(Plan& plan, bool overwrite_saved, bool forward_is_fixed) {
  std::vector<int> taken_by(plan.storages.size(), -1);
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const PlannedStep& step = plan.steps[static_cast<size_t>(s)];
    if (!step.kernel->inplace) continue;
    for (int out : step.out) {
      const int in = reusable_operand(plan, step, s, out, overwrite_saved, forward_is_fixed);
      if (in < 0) continue;
      const int from = plan.tensors[static_cast<size_t>(out)].storage;
      const int to = plan.tensors[static_cast<size_t>(in)].storage;
      PlannedStorage& gone = plan.storages[static_cast<size_t>(from)];
      PlannedStorage& stays = plan.storages[static_cast<size_t>(to)];
      stays.last_step = std::max(stays.last_step, gone.last_step);
      // A saved value that becomes a transient one stays where forward put it.
      const bool becomes_gradient = stays.role == Role::Saved && gone.role == Role::Gradient;
      stays.founds_gradient = stays.founds_gradient || becomes_gradient;
      if (stays.role != Role::Saved || becomes_gradient) {
        stays.role = gone.role;
        stays.index = gone.index;
      }
      gone.role = gone.role == Role::Gradient ? Role::Backward
                  : gone.role == Role::Output ? Role::Forward
                                              : gone.role;
      gone.bytes = 0;
      gone.first_step = gone.last_step = s;
      taken_by[static_cast<size_t>(from)] = to;
      for (PlannedTensor& tensor : plan.tensors)
        if (tensor.storage == from) tensor.storage = to;
    }
  }
}

namespace {

class Placer {
 public:
  Placer(Plan& plan, const Plan* base) : plan_(plan), base_(base) {}

  void run() {
    if (base_) {
      adopt_base();
    } else {
      place_arguments();
      place_outputs();
      place_saved();
      place_gradients(Region::Forward);
      place_transients(Role::Forward, 0, plan_.forward_steps);
    }
    place_gradients(Region::Backward);
    place_transients(Role::Backward, plan_.forward_steps, static_cast<int>(plan_.steps.size()));
    list_events();
  }

 private:
  int last_step() const { return static_cast<int>(plan_.steps.size()) - 1; }

  int add_buffer(BufferKind kind, int index, int64_t bytes, int first, int last) {
    plan_.buffers.push_back({kind, index, bytes, first, last});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  // Saved segments and outputs keep their place; only how long backward needs them is new.
  void adopt_base() {
    plan_.buffers.clear();
    for (const PlannedBuffer& buffer : base_->buffers) {
      const bool early = buffer.first_step < plan_.forward_steps;
      if (buffer.kind == BufferKind::BackwardArena ||
          (buffer.kind == BufferKind::Gradient && !early))
        break;
      plan_.buffers.push_back(buffer);
      // This backward may not need the gradient, or may have to leave what it would grow in.
      if (buffer.kind == BufferKind::Gradient) plan_.buffers.back().kind = BufferKind::Saved;
    }
    for (PlannedBuffer& buffer : plan_.buffers) {
      // Nothing may run in backward at all: no gradient depends on what arrived.
      if (buffer.kind == BufferKind::Saved)
        buffer.last_step = std::min(plan_.forward_steps, last_step());
      if (buffer.kind == BufferKind::Output) buffer.last_step = last_step();
    }
    for (const PlannedStorage& storage : plan_.storages) {
      const bool handed_over = storage.founds_gradient && storage.role == Role::Gradient;
      if ((storage.role != Role::Saved && !handed_over) || storage.buffer < 0) continue;
      PlannedBuffer& buffer = plan_.buffers[static_cast<size_t>(storage.buffer)];
      buffer.last_step = handed_over ? last_step() : std::max(buffer.last_step, storage.last_step);
      if (!handed_over) continue;
      buffer.kind = BufferKind::Gradient;
      buffer.index = storage.index;
    }
  }

  void place_arguments() {
    for (PlannedStorage& storage : plan_.storages) {
      if (storage.role != Role::Argument) continue;
      const auto& input = plan_.graph->inputs()[static_cast<size_t>(storage.index)];
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
      plan_.buffers.back().adopted = storage.adopted;
    }
  }

  /// Gradients whose memory begins in that region. Those of forward are placed before its arenas,
  /// so that other backward plans find them at the same number.
  void place_gradients(Region region) {
    for (PlannedStorage& storage : plan_.storages) {
      const bool early = storage.founds_gradient;
      if (storage.role != Role::Gradient || early != (region == Region::Forward)) continue;
      storage.buffer = add_buffer(BufferKind::Gradient, storage.index, storage.bytes,
                                  storage.first_step, last_step());
      plan_.buffers.back().adopted = storage.adopted;
    }
  }

  // Memory that a kernel returns cannot lie in an arena.
  void place_adopted(PlannedStorage& storage, BufferKind kind) {
    storage.buffer = add_buffer(kind, 0, storage.bytes, storage.first_step, storage.last_step);
    storage.offset_bytes = 0;
    plan_.buffers.back().adopted = true;
  }

  // Values that die together share a segment, so that backward gives memory back as it passes.
  void place_saved() {
    std::vector<size_t> saved;
    int64_t total = 0;
    for (size_t i = 0; i < plan_.storages.size(); ++i) {
      if (plan_.storages[i].role != Role::Saved) continue;
      if (plan_.storages[i].adopted) {
        place_adopted(plan_.storages[i], BufferKind::Saved);
        continue;
      }
      saved.push_back(i);
      total += align_up(plan_.storages[i].bytes);
    }
    std::stable_sort(saved.begin(), saved.end(), [&](size_t a, size_t b) {
      return plan_.storages[a].last_step < plan_.storages[b].last_step;
    });
    constexpr int64_t kMostSegments = 96;
    constexpr int64_t kLeastBytes = 8 << 10;
    const int64_t target = std::max(total / kMostSegments, kLeastBytes);
    int segment = -1;
    for (size_t i : saved) {
      PlannedStorage& storage = plan_.storages[i];
      if (segment < 0 || plan_.buffers[static_cast<size_t>(segment)].bytes >= target)
        segment = add_buffer(BufferKind::Saved, 0, 0, storage.first_step, storage.last_step);
      PlannedBuffer& buffer = plan_.buffers[static_cast<size_t>(segment)];
      storage.buffer = segment;
      storage.offset_bytes = buffer.bytes;
      buffer.bytes += align_up(storage.bytes);
      buffer.first_step = std::min(buffer.first_step, storage.first_step);
      buffer.last_step = std::max(buffer.last_step, storage.last_step);
    }
  }

  // Several phases follow the live bytes more closely than one arena, at the cost of more
  // allocations: take the fewest that reach the least peak.
  void place_transients(Role role, int begin, int end) {
    std::vector<size_t> members;
    int64_t total = 0;
    for (size_t i = 0; i < plan_.storages.size(); ++i) {
      PlannedStorage& storage = plan_.storages[i];
      if (storage.role != role || storage.bytes == 0 || storage.first_step < 0) continue;
      if (storage.adopted) {
        place_adopted(storage, kind_of(role));
        continue;
      }
      members.push_back(i);
      total += storage.bytes;
    }
    constexpr int64_t kWorthPhases = 1 << 20;
    constexpr int64_t kWorthAllocations = 400;  // a part of the peaks
    const size_t fixed = plan_.buffers.size();
    int best_phases = 1;
    int64_t best_peaks = -1;
    for (int phases : {1, 2, 4, 8, 16, 32, 64}) {
      if (phases > 1 && (total < kWorthPhases || end - begin < 2 * phases)) break;
      place_phases(members, role, begin, end, phases);
      const int64_t peaks = replayed_peaks(begin, end);
      plan_.buffers.resize(fixed);
      if (best_peaks >= 0 && peaks >= best_peaks - best_peaks / kWorthAllocations) continue;
      best_peaks = peaks;
      best_phases = phases;
    }
    place_phases(members, role, begin, end, best_phases);
  }

  void place_phases(const std::vector<size_t>& members, Role role, int begin, int end, int phases) {
    const BufferKind kind = kind_of(role);
    std::vector<std::vector<size_t>> inside(static_cast<size_t>(phases));
    auto phase_of = [&](int step) {
      return std::min(phases - 1, static_cast<int>(int64_t{step - begin} * phases / (end - begin)));
    };
    for (size_t i : members) {
      PlannedStorage& storage = plan_.storages[i];
      const int phase = phase_of(storage.first_step);
      if (phase == phase_of(storage.last_step)) {
        inside[static_cast<size_t>(phase)].push_back(i);
        continue;
      }
      storage.offset_bytes = 0;
      storage.buffer =
          add_buffer(kind, 0, align_up(storage.bytes), storage.first_step, storage.last_step);
    }
    for (const std::vector<size_t>& group : inside) {
      if (group.empty()) continue;
      std::vector<Block> blocks;
      int first = end, last = begin;
      for (size_t i : group) {
        const PlannedStorage& storage = plan_.storages[i];
        blocks.push_back({storage.first_step, storage.last_step, storage.bytes});
        first = std::min(first, storage.first_step);
        last = std::max(last, storage.last_step);
      }
      const Packing packing = pack(blocks);
      const int arena = add_buffer(kind, 0, packing.bytes, first, last);
      for (size_t k = 0; k < group.size(); ++k) {
        plan_.storages[group[k]].buffer = arena;
        plan_.storages[group[k]].offset_bytes = packing.offsets[k];
      }
    }
  }

  static BufferKind kind_of(Role role) {
    return role == Role::Forward ? BufferKind::ForwardArena : BufferKind::BackwardArena;
  }

  /// Of two ways to place transients the one with the smaller figure is better: the peak with new
  /// gradients, and the one without, as where gradients are added to existing ones; together.
  int64_t replayed_peaks(int begin, int end) const {
    const auto count = static_cast<size_t>(end - begin);
    std::vector<int64_t> change(count + 1), gradient_change(count + 1);  // by step
    for (const PlannedBuffer& buffer : plan_.buffers) {
      const int first = std::max(buffer.first_step, begin),
                last = std::min(buffer.last_step, end - 1);
      if (!buffer.owned() || first > last) continue;
      const auto note = [&](std::vector<int64_t>& changes) {
        changes[static_cast<size_t>(first - begin)] += buffer.bytes;
        changes[static_cast<size_t>(last + 1 - begin)] -= buffer.bytes;
      };
      note(change);
      if (buffer.kind == BufferKind::Gradient) note(gradient_change);
    }
    int64_t peak = 0, peak_without = 0, alive = 0, gradients = 0;
    for (size_t s = 0; s < count; ++s) {
      alive += change[s];
      gradients += gradient_change[s];
      peak = std::max(peak, alive);
      peak_without = std::max(peak_without, alive - gradients);
    }
    return peak + peak_without;
  }

  void list_events() {
    for (PlannedStep& step : plan_.steps) {
      step.allocate.clear();
      step.release.clear();
    }
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      const PlannedBuffer& buffer = plan_.buffers[b];
      if (!buffer.owned() || plan_.steps.empty()) continue;
      plan_.steps[static_cast<size_t>(buffer.first_step)].allocate.push_back(static_cast<int>(b));
      const bool kept = buffer.kind == BufferKind::Output || buffer.kind == BufferKind::Gradient;
      if (!kept)
        plan_.steps[static_cast<size_t>(buffer.last_step)].release.push_back(static_cast<int>(b));
    }
  }

  Plan& plan_;
  const Plan* base_;
};

}  // namespace

void place_storages(Plan& plan, const Plan* base) { Placer(plan, base).run(); }

void replay_events(Plan& plan) {
  plan.peak_bytes = plan.forward_peak_bytes = plan.saved_bytes = 0;
  plan.peak_step = 0;
  int64_t alive = 0;
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const PlannedStep& step = plan.steps[static_cast<size_t>(s)];
    for (int b : step.allocate) alive += plan.buffers[static_cast<size_t>(b)].bytes;
    const int64_t now = alive + step.library_bytes;
    if (now > plan.peak_bytes) {
      plan.peak_bytes = now;
      plan.peak_step = s;
    }
    if (s < plan.forward_steps) plan.forward_peak_bytes = plan.peak_bytes;
    for (int b : step.release) alive -= plan.buffers[static_cast<size_t>(b)].bytes;
  }
  for (const PlannedBuffer& buffer : plan.buffers) {
    const bool early =
        buffer.kind == BufferKind::Gradient && buffer.first_step < plan.forward_steps;
    if (buffer.kind == BufferKind::Saved || early) plan.saved_bytes += buffer.bytes;
  }
}

}  // namespace ortmodule
