// Compiles a pointwise group: nodes to micro-ops on virtual values, then an iteration space, a tile
// size, and a slot for each value.
#include "kernels/cpu/pointwise_program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/cpu/pointwise_integer.h"
#include "kernels/cpu/pointwise_values.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// What one tile may occupy of the first-level cache, operands in memory included.
constexpr int64_t kTileBudgetBytes = 28 * 1024;
constexpr int64_t kMinTile = 64;
constexpr int64_t kMaxTile = 4096;

class Compiler {
 public:
  explicit Compiler(const StepFacts& facts)
      : facts_(facts), program_(new PointwiseProgram), group_{.facts = facts} {
    group_.integers = integer_of_group(facts);
  }

  std::shared_ptr<PointwiseProgram> compile() {
    for (size_t i = 0; i < facts_.nodes.size(); ++i) add_node(i);
    make_space();
    simplify(group_);
    find_lifetimes();
    choose_tiles();
    place_inputs();
    place_outputs();
    place_constants();
    allocate_registers();
    emit();
    return std::move(program_);
  }

  bool fits() const { return fits_; }  // into the fixed limits of the runner

 private:
  // --- nodes to virtual ops ----------------------------------------------------------------------
  int input_value(int input) {
    return input_value(input, compute_of(facts_.inputs.at(static_cast<size_t>(input)).dtype));
  }

  int input_value(int input, Compute type) {
    auto [at, is_new] = input_values_.try_emplace({input, type}, -1);
    if (is_new) {
      at->second = group_.new_value(type);
      values_.back().input = input;
    }
    return at->second;
  }

  int operand_value(const NodeFacts& node, size_t i, Compute type) {
    const OperandRef& ref = node.inputs[i];
    switch (ref.kind) {
      case OperandRef::Kind::Input: return input_value(ref.index);
      case OperandRef::Kind::Register: return node_values_.at(static_cast<size_t>(ref.index));
      case OperandRef::Kind::Literal: return group_.literal_value(ref.literal, type);
      case OperandRef::Kind::Absent: break;
    }
    return -1;
  }

  int add_op(MicroFn run, std::vector<int> in, Compute out, const MicroParams& params = {}) {
    const int value = group_.new_value(out);
    ops_.push_back({run, value, std::move(in), params});
    return value;
  }

  void add_node(size_t index) {
    const NodeFacts& node = facts_.nodes[index];
    const DType out = node.output_dtypes.at(0);
    const int value = node.op == "Cast" ? add_cast(node, out) : add_micro_op(node, out);
    node_values_.push_back(value);
    if (!node.outputs.empty() && node.outputs[0] >= 0)
      values_[static_cast<size_t>(value)].outputs.push_back(node.outputs[0]);
  }

  int add_cast(const NodeFacts& node, DType out) {
    const DType from = node.input_dtypes.at(0);
    if (fits_float(from) && out == DType::Float32 && node.inputs[0].kind == OperandRef::Kind::Input)
      return input_value(node.inputs[0].index, Compute::F32);
    int value = operand_value(node, 0, compute_of(from));
    if (const int real =
            fits_float(from) && out == DType::Float32 ? group_.float_of_byte(value, from) : -1;
        real >= 0)
      return add_op(through_byte(from), {real}, Compute::F32);
    if (group_.integers && from != out && (from == *group_.integers || out == *group_.integers)) {
      value = add_op(integer_conversion(from, out), {value}, compute_of(out));
      const bool is_half = compute_of(out) == Compute::F32 && rounding(out);
      return is_half ? add_op(rounding(out), {value}, Compute::F32) : value;
    }
    const Compute have = values_[static_cast<size_t>(value)].type, want = compute_of(out);
    // To a 16-bit float everything goes through float, as in PyTorch.
    if (have != want) value = add_op(conversion(have, out), {value}, want);
    if (from != out && rounding(out)) value = add_op(rounding(out), {value}, want);
    return value;
  }

  int add_micro_op(const NodeFacts& node, DType out) {
    const PointwiseRow* op = find_pointwise_row(node);
    ORTM_ASSERT(op, "pointwise op ", node.op, " was accepted without a row");
    std::vector<int> in;
    for (size_t i = 0; i < node.inputs.size() && i < 3; ++i) {
      const bool condition = node.op == "Where" && i == 0;
      const int value = operand_value(node, i, condition ? Compute::Bool : op->in);
      if (value >= 0) in.push_back(value);
    }
    MicroParams params;
    if (op->configure) op->configure(node, params);
    random_ = random_ || op->random;
    const bool is_narrow = group_.integers && op->in == Compute::I64;
    const int value = add_op(is_narrow ? integer_loop(op->name, *group_.integers) : find_loop(*op),
                             std::move(in), op->out, params);
    // Every node rounds to its own type, so that grouping changes no bit.
    return rounding(out) && !is_narrow ? add_op(rounding(out), {value}, op->out) : value;
  }

  // --- lifetimes, space and tiles ----------------------------------------------------------------
  void find_lifetimes() {
    const int end = static_cast<int>(ops_.size()) + 1;
    for (size_t k = 0; k < ops_.size(); ++k) {
      const int position = static_cast<int>(k) + 1;
      values_[static_cast<size_t>(ops_[k].out)].defined = position;
      for (int in : ops_[k].in) values_[static_cast<size_t>(in)].last_use = position;
    }
    for (VirtualValue& value : values_) {
      if (value.outputs.empty()) continue;
      value.last_use = end;
    }
  }

  void make_space() {
    const Sizes& sizes = facts_.outputs.at(0).layout.sizes;
    std::vector<Sizes> strides;
    for (const OperandFacts& output : facts_.outputs) strides.push_back(output.layout.strides);
    for (const OperandFacts& input : facts_.inputs)
      strides.push_back(broadcast_strides(input.layout, sizes));
    if (random_) {
      program_->index_operand = strides.size();
      strides.push_back(contiguous_strides(sizes));
    }
    program_->space = iteration_space(sizes, strides);
    group_.space = program_->space;
    program_->total = element_count(sizes);
    if (random_ && !program_->space.is_linear(program_->index_operand))
      program_->index_slot = new_slot(Slot::Kind::Arena);
  }

  int64_t bytes_per_element() const {
    // Registers of one width are not handed on to another, so their peaks add up.
    int64_t total = program_->index_slot >= 0 ? 8 : 0;
    const int end = static_cast<int>(ops_.size()) + 1;
    for (int64_t width : {1, 2, 4, 8}) {
      int64_t most = 0;
      for (int position = 0; position <= end; ++position) {
        most = std::max<int64_t>(
            most, std::count_if(values_.begin(), values_.end(), [&](const VirtualValue& value) {
              return value.bytes() == width && value.defined <= position &&
                     value.last_use >= position;
            }));
      }
      total += most * width;
    }
    return total;
  }

  void choose_tiles() {
    PointwiseProgram& p = *program_;
    const int64_t fitting = kTileBudgetBytes / std::max<int64_t>(bytes_per_element(), 1);
    int64_t tile = std::clamp(fitting / 64 * 64, kMinTile, kMaxTile);
    const int64_t inner = p.space.inner();
    if (p.space.rank > 1 && (inner * 2 > tile || group_.by_rows)) {
      p.tiles_per_row = ceil_div(inner, tile);
      tile = std::min(inner, ceil_div(ceil_div(inner, p.tiles_per_row), 16) * 16);
      p.tiles_per_row = ceil_div(inner, tile);
      p.tile_count = p.total == 0 ? 0 : p.total / inner * p.tiles_per_row;
    } else if (p.total > 0) {
      // A multiple of the largest suffix that fits: operands broadcast over it repeat per tile.
      int64_t period = 1;
      for (int d = p.space.rank - 1; d > 0 && period * p.space.sizes[d] <= tile; --d)
        period *= p.space.sizes[d];
      tile = std::min(tile / period * period, p.total);
      p.tile_count = ceil_div(p.total, tile);
    }
    p.tile = tile;
    const int64_t weight = std::max<int64_t>(1, static_cast<int64_t>(ops_.size()) / 2);
    p.grain_tiles = std::max<int64_t>(1, 32768 / weight / std::max<int64_t>(tile, 1));
  }

  // --- slots -------------------------------------------------------------------------------------
  int new_slot(Slot::Kind kind) {
    program_->slots.emplace_back();
    program_->slots.back().kind = kind;
    return static_cast<int>(program_->slots.size()) - 1;
  }

  // Whether a tile of the operand is consecutive in memory.
  bool is_addressable(size_t operand) const {
    const IterationSpace& space = program_->space;
    if (space.is_linear(operand)) return true;
    return program_->tiles_per_row > 0 && space.strides[operand][space.rank - 1] == 1;
  }

  // Whether every tile of the operand has the same content.
  bool is_invariant(size_t operand) const {
    const IterationSpace& space = program_->space;
    int64_t period = 1, suffix = 1;
    for (int d = space.rank - 1; d >= 0; --d) {
      suffix *= space.sizes[d];
      if (space.strides[operand][d] != 0) period = suffix;
    }
    if (period == 1) return true;
    return program_->tiles_per_row == 0 && program_->tile_count > 1 && period < program_->total &&
           program_->tile % period == 0;
  }

  TensorAccess access(int tensor, size_t operand, DType dtype, const VirtualValue& value) {
    TensorAccess a;
    a.tensor = tensor;
    a.operand = operand;
    a.element_bytes = static_cast<int64_t>(size_of(dtype));
    a.tile_element_bytes = value.bytes();
    a.single = value.single;
    a.linear = program_->space.is_linear(operand);
    return a;
  }

  void place_inputs() {
    const size_t output_count = facts_.outputs.size();
    for (auto [key, id] : input_values_) {
      const int input = key.first;
      VirtualValue& value = values_[static_cast<size_t>(id)];
      const DType dtype = facts_.inputs[static_cast<size_t>(input)].dtype;
      TensorAccess a = access(input, output_count + static_cast<size_t>(input), dtype, value);
      // A copy of an input is stored after other outputs, which may overwrite that input.
      const bool copied_late = !value.outputs.empty() && output_count > 1;
      if (value.lies_as(dtype) && is_addressable(a.operand) && !copied_late) {
        value.slot = a.slot = new_slot(Slot::Kind::Direct);
        program_->direct_inputs.push_back(a);
        continue;
      }
      value.slot = a.slot = new_slot(Slot::Kind::Arena);
      a.load = value.stored ? copying_load(size_of(dtype)) : load_of(dtype, value.type);
      // What a whole row reads is loaded once, too, but keeps its register: so few may.
      PointwiseProgram& p = *program_;
      const bool in_row = p.tiles_per_row > (value.single ? 0 : 1) && p.repeated_loads.size() < 4 &&
                          p.space.strides[a.operand][p.space.rank - 1] == 0;
      auto& loads = is_invariant(a.operand) ? p.invariant_loads
                    : in_row                ? p.repeated_loads
                                            : p.loads;
      if (&loads != &p.loads) value.last_use = static_cast<int>(ops_.size()) + 1;
      loads.push_back(a);
    }
  }

  bool reads_memory(const VirtualOp& op) const {
    return std::any_of(op.in.begin(), op.in.end(), [&](int in) {
      const VirtualValue& value = values_[static_cast<size_t>(in)];
      return value.input >= 0 &&
             program_->slots[static_cast<size_t>(value.slot)].kind == Slot::Kind::Direct;
    });
  }

  // An output may take the storage of an input, so nothing may read an input from memory after a
  // tile's first write. The last op that does may itself write: it reads an element before it.
  void place_outputs() {
    int last_reader = 0;
    for (size_t k = 0; k < ops_.size(); ++k)
      if (reads_memory(ops_[k])) last_reader = static_cast<int>(k) + 1;
    for (VirtualValue& value : values_) {
      for (int output : value.outputs) {
        const DType dtype = facts_.outputs[static_cast<size_t>(output)].dtype;
        TensorAccess a = access(output, static_cast<size_t>(output), dtype, value);
        const bool in_place = value.slot < 0 && !value.literal && value.defined >= last_reader &&
                              value.lies_as(dtype) && is_addressable(a.operand);
        if (in_place) {
          value.slot = a.slot = new_slot(Slot::Kind::Direct);
          program_->direct_outputs.push_back(a);
        } else {
          a.store = value.stored ? copying_store(size_of(dtype)) : store_of(dtype, value.type);
          program_->stores.push_back(a);  // its slot follows in emit()
          stored_values_.push_back(static_cast<int>(&value - values_.data()));
        }
      }
    }
  }

  template <class T>
  static void fill(std::byte* memory, int64_t count, double number) {
    std::fill_n(reinterpret_cast<T*>(memory), count, static_cast<T>(number));
  }

  static void fill_integers(std::byte* memory, int64_t count, const VirtualValue& value) {
    dispatch_number(value.stored.value_or(DType::Int64), [&]<class T> {
      if constexpr (std::is_arithmetic_v<T>) fill<T>(memory, count, value.number);
    });
  }

  void place_constants() {
    for (VirtualValue& value : values_) {
      if (!value.literal) continue;
      const int64_t count = program_->tile;
      const size_t bytes = static_cast<size_t>(count * value.bytes());
      AlignedBytes memory(new (std::align_val_t{64}) std::byte[bytes]);
      switch (value.type) {
        case Compute::F32: fill<float>(memory.get(), count, value.number); break;
        case Compute::F64: fill<double>(memory.get(), count, value.number); break;
        case Compute::I64: fill_integers(memory.get(), count, value); break;
        case Compute::Bool: fill<bool>(memory.get(), count, value.number != 0 ? 1 : 0); break;
        case Compute::U64: fill<uint64_t>(memory.get(), count, value.number); break;
      }
      value.slot = new_slot(Slot::Kind::Constant);
      program_->slots.back().constant = memory.get();
      program_->constants.push_back(std::move(memory));
    }
  }

  // Registers are handed on when their value dies; an op may write where its operand of the same
  // width lay, since its loop reads an element before it writes it.
  void allocate_registers() {
    const int64_t capacity = ceil_div(program_->tile, 64) * 64;
    std::map<int64_t, std::vector<int64_t>> free_offsets;  // by bytes per element
    int64_t used = 0;
    auto take = [&](int64_t bytes) {
      std::vector<int64_t>& offsets = free_offsets[bytes];
      if (!offsets.empty()) {
        const int64_t offset = offsets.back();
        offsets.pop_back();
        return offset;
      }
      used += capacity * bytes;
      return used - capacity * bytes;
    };
    auto slot_of = [&](int id) -> Slot& {
      return program_->slots[static_cast<size_t>(values_[static_cast<size_t>(id)].slot)];
    };
    if (program_->index_slot >= 0)
      program_->slots[static_cast<size_t>(program_->index_slot)].arena_offset = take(8);
    for (auto [key, id] : input_values_)
      if (slot_of(id).kind == Slot::Kind::Arena)
        slot_of(id).arena_offset = take(values_[static_cast<size_t>(id)].bytes());
    for (size_t k = 0; k < ops_.size(); ++k) {
      std::vector<int> dying = ops_[k].in;
      std::sort(dying.begin(), dying.end());
      dying.erase(std::unique(dying.begin(), dying.end()), dying.end());
      for (int in : dying) {
        const VirtualValue& value = values_[static_cast<size_t>(in)];
        if (value.last_use == static_cast<int>(k) + 1 && slot_of(in).kind == Slot::Kind::Arena)
          free_offsets[value.bytes()].push_back(slot_of(in).arena_offset);
      }
      VirtualValue& out = values_[static_cast<size_t>(ops_[k].out)];
      if (out.slot >= 0) continue;
      out.slot = new_slot(Slot::Kind::Arena);
      program_->slots.back().arena_offset = take(out.bytes());
    }
    fits_ = used <= kArenaBytes;
  }

  void emit() {
    for (const VirtualOp& op : ops_) {
      Instruction instruction;
      instruction.run = op.run;
      instruction.params = op.params;
      instruction.out = values_[static_cast<size_t>(op.out)].slot;
      for (size_t i = 0; i < op.in.size(); ++i)
        instruction.in[i] = values_[static_cast<size_t>(op.in[i])].slot;
      program_->instructions.push_back(instruction);
    }
    for (size_t i = 0; i < stored_values_.size(); ++i)
      program_->stores[i].slot = values_[static_cast<size_t>(stored_values_[i])].slot;
    auto strided = [](const TensorAccess& a) { return !a.linear; };
    const PointwiseProgram& p = *program_;
    program_->needs_coords = std::any_of(p.direct_inputs.begin(), p.direct_inputs.end(), strided) ||
                             std::any_of(p.direct_outputs.begin(), p.direct_outputs.end(), strided);
    fits_ = fits_ && p.slots.size() <= static_cast<size_t>(kMaxSlots);
  }

  const StepFacts& facts_;
  std::shared_ptr<PointwiseProgram> program_;
  VirtualGroup group_;
  std::vector<VirtualValue>& values_ = group_.values;
  std::vector<VirtualOp>& ops_ = group_.ops;
  std::vector<int> node_values_;
  std::map<std::pair<int, Compute>, int> input_values_;  // by input and computed type
  std::vector<int> stored_values_;
  bool random_ = false;
  bool fits_ = true;
};

}  // namespace

Reason pointwise_unsupported(const StepFacts& facts) {
  if (facts.outputs.empty()) return "the group has no output";
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  if (real_rank(sizes) > kMaxRank) return str("it has more than ", kMaxRank, " dimensions");
  for (const OperandFacts& output : facts.outputs)
    if (output.layout.sizes != sizes) return "the outputs differ in shape";
  size_t values = facts.inputs.size() + facts.outputs.size() + 1;
  for (const NodeFacts& node : facts.nodes) {
    if (Reason reason = pointwise_node_unsupported(node)) return reason;
    values += 2;  // the op and its rounding
    for (const OperandRef& ref : node.inputs) values += ref.kind == OperandRef::Kind::Literal;
  }
  // Whatever the lifetimes, eight bytes for each in the smallest tile fit: nothing to try.
  if (values <= std::min<size_t>(kMaxSlots, kArenaBytes / (8 * kMinTile))) return {};
  Compiler compiler(facts);
  compiler.compile();
  if (!compiler.fits()) return "the group has more values than a tile has registers";
  return {};
}

std::shared_ptr<PointwiseProgram> compile_pointwise(const StepFacts& facts) {
  Compiler compiler(facts);
  std::shared_ptr<PointwiseProgram> program = compiler.compile();
  ORTM_ASSERT(compiler.fits(), "a pointwise group of ", facts.nodes.size(), " nodes is too large");
  return program;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
