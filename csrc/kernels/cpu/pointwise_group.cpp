// PointwiseGroup: one or many pointwise nodes of one shape in one pass over memory.
// Method: the group is compiled (pointwise_program.cpp) to loops over tiles that fit the
// first-level cache. Operands of the computation type are read and results written in place; what
// is broadcast, strided or stored in another type goes through a tile register. Each node rounds to
// its own type, so a group gives the bits that its nodes would give one by one. Bytes moved: each
// operand and each output once.
#include "kernels/cpu/pointwise_bytes.h"
#include "kernels/cpu/pointwise_cast.h"
#include "kernels/cpu/pointwise_scaled_rows.h"
#include "kernels/cpu/read_range.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// Calls body(offset, count, position) for the runs along the innermost dimension that make up
// elements [start, start + count) of the space; position counts from start.
template <class Body>
void for_each_run(const IterationSpace& space, size_t operand, int64_t start, int64_t count,
                  const Body& body) {
  const Coords& strides = space.strides[operand];
  const int last = space.rank - 1;
  Coords coords = space.unravel(start);
  int64_t offset = space.offset(operand, coords);
  for (int64_t position = 0; position < count;) {
    const int64_t run = std::min(count - position, space.sizes[last] - coords[last]);
    body(offset, run, position);
    position += run;
    offset -= coords[last] * strides[last];
    coords[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      offset += strides[d];
      if (++coords[d] < space.sizes[d]) break;
      offset -= strides[d] * space.sizes[d];
      coords[d] = 0;
    }
  }
}

void load_tile(const IterationSpace& space, const TensorAccess& a, const void* tensor,
               std::byte* tile, int64_t start, int64_t count) {
  if (a.single) count = std::min<int64_t>(count, 1);
  const std::byte* base = static_cast<const std::byte*>(tensor);
  if (a.linear) {
    a.load(tile, base + start * a.element_bytes, count, 1);
    return;
  }
  const int64_t stride = space.strides[a.operand][space.rank - 1];
  for_each_run(space, a.operand, start, count, [&](int64_t offset, int64_t run, int64_t position) {
    a.load(tile + position * a.tile_element_bytes, base + offset * a.element_bytes, run, stride);
  });
}

void store_tile(const IterationSpace& space, const TensorAccess& a, void* tensor,
                const std::byte* tile, int64_t start, int64_t count) {
  std::byte* base = static_cast<std::byte*>(tensor);
  if (a.linear) {
    a.store(base + start * a.element_bytes, tile, count, 1);
    return;
  }
  const int64_t stride = space.strides[a.operand][space.rank - 1];
  for_each_run(space, a.operand, start, count, [&](int64_t offset, int64_t run, int64_t position) {
    a.store(base + offset * a.element_bytes, tile + position * a.tile_element_bytes, run, stride);
  });
}

// One thread's state: where each slot of the current tile lies.
class TileRunner {
 public:
  TileRunner(const PointwiseProgram& program, const KernelArgs& args, std::byte* arena)
      : p_(program), args_(args), read_(args.context) {
    random_.seed = args.context.seed.value;
    for (size_t i = 0; i < p_.slots.size(); ++i) {
      const Slot& slot = p_.slots[i];
      if (slot.kind == Slot::Kind::Arena) slots_[i] = arena + slot.arena_offset;
      // Only ever read through.
      if (slot.kind == Slot::Kind::Constant) slots_[i] = const_cast<void*>(slot.constant);
    }
    const int64_t count = std::min(p_.tile, p_.total);
    for (const TensorAccess& a : p_.invariant_loads) load(a, 0, count);
    for (const TensorAccess& a : p_.repeated_loads) held_[a.slot] = nullptr;
    if (args.context.progress) find_followed();
  }

  void run(int64_t tile_index) {
    int64_t start = tile_index * p_.tile, count = std::min(p_.tile, p_.total - start);
    if (p_.tiles_per_row > 0) {
      const int64_t inner = p_.space.inner();
      const int64_t row = tile_index / p_.tiles_per_row;
      const int64_t column = (tile_index - row * p_.tiles_per_row) * p_.tile;
      start = row * inner + column;
      count = std::min(p_.tile, inner - column);
    }
    point_slots(start);
    for (const TensorAccess& a : p_.loads) load(a, start, count);
    random_.first_index = start;
    if (p_.index_slot >= 0) make_indices(start, count);
    for (const Instruction& instruction : p_.instructions) {
      const MicroArgs m{
          count,
          slots_[instruction.out],
          {slots_[instruction.in[0]], slots_[instruction.in[1]], slots_[instruction.in[2]]},
          &instruction.params,
          &random_};
      instruction.run(m);
    }
    for (const TensorAccess& a : p_.stores) {
      store_tile(p_.space, a, args_.out[static_cast<size_t>(a.tensor)].data,
                 static_cast<const std::byte*>(slots_[a.slot]), start, count);
    }
    if (followed_) note_read(start, count);
  }

 private:
  /// One operand that is read from front to back: a weight that is scaled or cast.
  void find_followed() {
    for (const auto* accesses : {&p_.direct_inputs, &p_.loads})
      for (const TensorAccess& a : *accesses)
        if (a.linear && !followed_) followed_ = &a;
  }

  void note_read(int64_t start, int64_t count) {
    const auto* first = args_.in[static_cast<size_t>(followed_->tensor)].as<const std::byte>() +
                        start * followed_->element_bytes;
    read_.has_read(first, first + count * followed_->element_bytes);
  }

  void load(const TensorAccess& a, int64_t start, int64_t count) {
    const TensorView& view = args_.in[static_cast<size_t>(a.tensor)];
    load_tile(p_.space, a, view.data, static_cast<std::byte*>(slots_[a.slot]), start, count);
  }

  void point_slots(int64_t start) {
    const bool needs_coords = p_.needs_coords || !p_.repeated_loads.empty();
    const Coords coords = needs_coords ? p_.space.unravel(start) : Coords{};
    auto point = [&](const TensorAccess& a, void* data) {
      const int64_t offset = a.linear ? start : p_.space.offset(a.operand, coords);
      slots_[a.slot] = static_cast<std::byte*>(data) + offset * a.element_bytes;
    };
    for (const TensorAccess& a : p_.direct_inputs)
      point(a, args_.in[static_cast<size_t>(a.tensor)].data);
    for (const TensorAccess& a : p_.direct_outputs)
      point(a, args_.out[static_cast<size_t>(a.tensor)].data);
    for (const TensorAccess& a : p_.repeated_loads) {
      const auto* element = args_.in[static_cast<size_t>(a.tensor)].as<const std::byte>() +
                            p_.space.offset(a.operand, coords) * a.element_bytes;
      if (held_[a.slot] == element) continue;
      a.load(slots_[a.slot], element, a.single ? 1 : p_.tile, 0);
      held_[a.slot] = element;
    }
  }

  void make_indices(int64_t start, int64_t count) {
    int64_t* indices = static_cast<int64_t*>(slots_[p_.index_slot]);
    const int64_t stride = p_.space.strides[p_.index_operand][p_.space.rank - 1];
    for_each_run(p_.space, p_.index_operand, start, count,
                 [&](int64_t offset, int64_t run, int64_t position) {
                   for (int64_t i = 0; i < run; ++i) indices[position + i] = offset + i * stride;
                 });
    random_.indices = indices;
  }

  const PointwiseProgram& p_;
  const KernelArgs& args_;
  ReadRange read_;
  const TensorAccess* followed_ = nullptr;
  RandomState random_;
  void* slots_[kMaxSlots];
  const std::byte* held_[kMaxSlots];  // the element that fills a slot, for repeated loads
};

}  // namespace

void run_pointwise(const PointwiseProgram& program, const KernelArgs& args) {
  constexpr auto kElementBytes = static_cast<int64_t>(sizeof(float));
  followed_ranges(args.context, program.tile_count, program.grain_tiles,
                  program.tile * kElementBytes, [&](int64_t begin, int64_t end) {
                    alignas(64) std::byte arena[kArenaBytes];
                    TileRunner runner(program, args, arena);
                    for (int64_t tile = begin; tile < end; ++tile) runner.run(tile);
                  });
}

namespace {

void run_pointwise_group(const KernelArgs& args) {
  const PointwiseProgram& program = *static_cast<const PointwiseProgram*>(args.prepared);
  if (program.of_each_byte)
    run_by_table(program, args);
  else if (program.cast)
    run_direct_cast(program, args);
  else if (program.scaled_rows.x >= 0 && !args.context.progress)
    run_scaled_rows(program, args);
  else
    run_pointwise(program, args);
}

REGISTER_CPU_KERNEL({
    .op = "PointwiseGroup",
    .name = "pointwise_group_cpu",
    .dtypes = kRealTypes | kWideUnsigned,
    .run = run_pointwise_group,
    .unsupported = pointwise_unsupported,
    .prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
      const std::shared_ptr<PointwiseProgram> program = compile_pointwise(facts);
      add_byte_table(facts, *program);
      add_direct_cast(facts, *program);
      add_scaled_rows(facts, *program);
      return program;
    },
    .layout = LayoutRule::Any,
    .inplace = true,
});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
