// A pointwise group compiled to a flat list of loops over tiles. No lookup, no allocation and no
// virtual call happens while it runs: slots are resolved to addresses once per tile.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/pointwise_op.h"
#include "kernels/iteration.h"

namespace ortmodule {
inline namespace ORTM_ISA {

inline constexpr int kMaxSlots = 192;
/// Tile registers of one thread, on its stack.
inline constexpr int64_t kArenaBytes = 48 * 1024;

/// Where a value of the program lies during a tile.
struct Slot {
  enum class Kind : uint8_t { Arena, Constant, Direct };
  Kind kind = Kind::Arena;
  int64_t arena_offset = 0;
  const void* constant = nullptr;
};

/// A tensor of the step as the program walks it.
struct TensorAccess {
  int slot = 0;
  int tensor = 0;      // position among the step's inputs or outputs
  size_t operand = 0;  // position in IterationSpace::strides
  int64_t element_bytes = 0;
  int64_t tile_element_bytes = 0;
  bool linear = false;
  bool single = false;  // only a tile's first element is read
  LoadFn load = nullptr;
  StoreFn store = nullptr;
};

struct Instruction {
  MicroFn run = nullptr;
  int out = 0;
  int in[3] = {0, 0, 0};
  MicroParams params;
};

/// Releases memory that came from aligned operator new.
struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

/// Of a group that computes x factor + offset, and its Relu if it `bends`, with one factor and
/// offset for each row: the tensors' positions among the operands. x is -1 for other groups.
struct ScaledRows {
  int x = -1, factor = -1, offset = -1;
  bool bends = false;
};

struct PointwiseProgram {
  IterationSpace space;
  int64_t total = 0;
  int64_t tile = 0;  // elements of a full tile
  int64_t tile_count = 0;
  int64_t tiles_per_row = 0;  // row mode: tiles never cross a row; 0 in linear mode
  bool needs_coords = false;
  int64_t grain_tiles = 1;
  int index_slot = -1;  // receives logical indices if they do not follow one another
  size_t index_operand = 0;
  std::vector<Slot> slots;
  std::vector<TensorAccess> direct_inputs, direct_outputs;  // addressed in place
  std::vector<TensorAccess> invariant_loads;                // whose tile is the same everywhere
  std::vector<TensorAccess> repeated_loads;  // of one element for a whole row or tile
  std::vector<TensorAccess> loads, stores;
  std::vector<Instruction> instructions;
  std::vector<AlignedBytes> constants;
  /// Of a group that makes bytes of one tensor of bytes and of numbers: the program for 256
  /// elements, all values of a byte, and the tensor's position among the operands.
  std::shared_ptr<const PointwiseProgram> of_each_byte;
  int byte_input = -1;
  /// Of a group that is one Cast of dense memory: converts so many elements.
  void (*cast)(const void* from, void* to, int64_t count) = nullptr;
  ScaledRows scaled_rows;
};

/// Runs the program over the operands and results of `args`.
void run_pointwise(const PointwiseProgram& program, const KernelArgs& args);
/// Why no program can be made of this group, or nothing.
Reason pointwise_unsupported(const StepFacts& facts);
std::shared_ptr<PointwiseProgram> compile_pointwise(const StepFacts& facts);

}  // namespace ORTM_ISA
}  // namespace ortmodule
