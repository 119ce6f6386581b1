// Compiles a pointwise group for the accumulator machine: nodes to operations on virtual values,
// then a slot for each value that is still wanted after the next operation. Results are written
// only when the last operand has been read, because an output may lie in an operand's storage.
#include "kernels/cuda/pointwise_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/pointwise_table.h"

namespace ortmodule::cuda {
namespace {

// 48 KiB of slots in a block of 32 threads.
constexpr int kMaxNarrowSlots = 48 * 1024 / (32 * kPointwisePerThread * 4);
constexpr int kMaxWideSlots = kMaxNarrowSlots / 2;

static_assert(kMaxWideSlots >= kMaxPointwiseParams);
static_assert(kMaxPointwiseInstructions >= 2 * kMaxPointwiseParams + kMaxPointwiseTensors);

constexpr uint16_t kCopy = kPointwiseRows + static_cast<int>(PointwiseExtra::Copy);
constexpr uint16_t kStore = kPointwiseRows + static_cast<int>(PointwiseExtra::Store);
constexpr uint16_t kFloatToInt32 = kPointwiseRows + static_cast<int>(PointwiseExtra::FloatToInt32);
constexpr uint16_t kDoubleToInt32 =
    kPointwiseRows + static_cast<int>(PointwiseExtra::DoubleToInt32);
constexpr uint16_t kConvert = kPointwiseRows + static_cast<int>(PointwiseExtra::Convert);

struct Value {
  Compute type = Compute::F32;
  int input = -1;     // a tensor of the step, or
  int constant = -1;  // an entry of `constants`, or
  int op = -1;        // what an operation gives
  std::vector<int> outputs;
  int last_slot_use = -1;  // the operation that last reads it from its slot
  int slot = -1;
};

struct Operation {
  uint16_t op = 0;
  DType round = DType::Undefined;
  uint8_t params = 0;
  std::vector<int> in;
  int out = -1;
};

bool needs_rounding(DType dtype) {
  return !is_stored_as_computed(dtype) && kRealTypes.contains(dtype);
}

class Compiler {
 public:
  explicit Compiler(const StepFacts& facts) : facts_(facts), program_(new PointwiseProgram) {}

  std::shared_ptr<const PointwiseProgram> compile() {
    for (const NodeFacts& node : facts_.nodes) add_node(node);
    make_space();
    find_slot_uses();
    emit();
    return std::move(program_);
  }

  /// What does not fit, or nothing.
  Reason failure() const { return failure_; }

 private:
  PointwiseLaunch& launch() { return program_->launch; }
  Value& value(int id) { return values_[static_cast<size_t>(id)]; }

  void fail_unless(bool fits, std::string_view what, int most) {
    if (!fits && !failure_) failure_ = str("the group has more than ", most, " ", what);
  }

  // --- nodes to operations -----------------------------------------------------------------------
  int new_value(Compute type) {
    values_.emplace_back();
    values_.back().type = type;
    return static_cast<int>(values_.size()) - 1;
  }

  int input_value(int input) {
    auto [at, is_new] = input_values_.try_emplace(input, -1);
    if (is_new) {
      at->second = new_value(compute_of(facts_.inputs.at(static_cast<size_t>(input)).dtype));
      values_.back().input = input;
    }
    return at->second;
  }

  static uint64_t word_of(double number, Compute type) {
    uint64_t word = 0;
    auto put = [&](auto x) { std::memcpy(&word, &x, sizeof(x)); };
    switch (type) {
      case Compute::F32: put(static_cast<float>(number)); break;
      case Compute::F64: put(number); break;
      case Compute::I64: put(static_cast<int64_t>(number)); break;
      case Compute::Bool: put(static_cast<uint8_t>(number != 0)); break;
      case Compute::U64: break;  // of sessions on the host only
    }
    return word;
  }

  int literal_value(double number, Compute type) {
    const uint64_t word = word_of(number, type);
    for (size_t i = 0; i < values_.size(); ++i)
      if (values_[i].constant >= 0 && values_[i].type == type &&
          constants_[static_cast<size_t>(values_[i].constant)] == word)
        return static_cast<int>(i);
    const int id = new_value(type);
    value(id).constant = static_cast<int>(constants_.size());
    constants_.push_back(word);
    program_->constant_types.push_back(type);
    return id;
  }

  int operand_value(const NodeFacts& node, size_t i, Compute type) {
    const OperandRef& ref = node.inputs[i];
    switch (ref.kind) {
      case OperandRef::Kind::Input: return input_value(ref.index);
      case OperandRef::Kind::Register: return node_values_.at(static_cast<size_t>(ref.index));
      case OperandRef::Kind::Literal: return literal_value(ref.literal, type);
      case OperandRef::Kind::Absent: break;
    }
    return -1;
  }

  int add_operation(uint16_t op, std::vector<int> in, Compute out, DType round, uint8_t params) {
    const int id = new_value(out);
    value(id).op = static_cast<int>(operations_.size());
    operations_.push_back({op, round, params, std::move(in), id});
    return id;
  }

  void add_node(const NodeFacts& node) {
    const DType out = node.output_dtypes.at(0);
    int id = node.op == "Cast" ? add_cast(node, out) : add_row(node, out);
    const bool is_output = !node.outputs.empty() && node.outputs[0] >= 0;
    if (is_output && value(id).op < 0)
      id = add_operation(kCopy, {id}, value(id).type, DType::Undefined, 0);
    node_values_.push_back(id);
    if (is_output) value(id).outputs.push_back(node.outputs[0]);
  }

  // Every node rounds to its own type, so that grouping changes no bit.
  static DType rounding(DType dtype) { return needs_rounding(dtype) ? dtype : DType::Undefined; }

  static uint16_t conversion(Compute from, DType to) {
    const bool is_float = from == Compute::F32 || from == Compute::F64;
    if (is_float && is_converted_through_int32(to))
      return from == Compute::F32 ? kFloatToInt32 : kDoubleToInt32;
    return static_cast<uint16_t>(kConvert + 4 * static_cast<int>(from) +
                                 static_cast<int>(compute_of(to)));
  }

  int add_cast(const NodeFacts& node, DType out) {
    const DType from = node.input_dtypes.at(0);
    const int id = operand_value(node, 0, compute_of(from));
    const Compute have = value(id).type, want = compute_of(out);
    const DType round = from == out ? DType::Undefined : rounding(out);
    // To a 16-bit float everything goes through float, as in PyTorch.
    if (have != want) return add_operation(conversion(have, out), {id}, want, round, 0);
    return round == DType::Undefined ? id : add_operation(kCopy, {id}, want, round, 0);
  }

  int add_row(const NodeFacts& node, DType out) {
    const PointwiseRow* row = find_pointwise_row(node);
    ORTM_ASSERT(row, "pointwise op ", node.op, " was accepted without a row");
    std::vector<int> in;
    for (size_t i = 0; i < node.inputs.size() && i < 3; ++i) {
      const bool condition = node.op == "Where" && i == 0;
      const int id = operand_value(node, i, condition ? Compute::Bool : row->in);
      if (id >= 0) in.push_back(id);
    }
    uint8_t params = 0;
    if (row->configure) {
      params = static_cast<uint8_t>(params_.size());
      params_.emplace_back();
      row->configure(node, params_.back());
    }
    random_ = random_ || row->random;
    const int index = pointwise_index(std::string(row->name).c_str(), row->in);
    return add_operation(static_cast<uint16_t>(index), std::move(in), row->out, rounding(out),
                         params);
  }

  // --- space -------------------------------------------------------------------------------------
  void make_space() {
    const Sizes& sizes = facts_.outputs.at(0).layout.sizes;
    std::vector<Sizes> strides;
    std::vector<DType> dtypes;
    for (const OperandFacts& output : facts_.outputs) {
      strides.push_back(output.layout.strides);
      dtypes.push_back(output.dtype);
    }
    for (const OperandFacts& input : facts_.inputs) {
      strides.push_back(broadcast_strides(input.layout, sizes));
      dtypes.push_back(input.dtype);
    }
    if (random_) {
      launch().index_tensor = static_cast<int>(strides.size());
      strides.push_back(contiguous_strides(sizes));
      dtypes.push_back(DType::Undefined);
    }
    program_->outputs = facts_.outputs.size();
    program_->inputs = facts_.inputs.size();
    program_->space = iteration_space(sizes, strides);
    fail_unless(program_->space.rank <= kMaxPointwiseDims, "dimensions", kMaxPointwiseDims);
    fail_unless(strides.size() <= kMaxPointwiseTensors, "operands", kMaxPointwiseTensors);
    for (size_t i = 0; i < dtypes.size() && i < kMaxPointwiseTensors; ++i)
      launch().tensors[i].dtype = dtypes[i];
  }

  // --- slots -------------------------------------------------------------------------------------
  // The last operation that reads a tensor of the step, from which on results are written.
  int last_reader() const {
    int last = 0;
    for (size_t k = 0; k < operations_.size(); ++k)
      for (int in : operations_[k].in)
        if (values_[static_cast<size_t>(in)].input >= 0) last = static_cast<int>(k);
    return last;
  }

  void find_slot_uses() {
    last_reader_ = last_reader();
    for (size_t k = 0; k < operations_.size(); ++k)
      for (int in : operations_[k].in)
        if (value(in).op >= 0 && value(in).op + 1 != static_cast<int>(k))
          value(in).last_slot_use = static_cast<int>(k);
    for (Value& v : values_)
      if (v.op >= 0 && !v.outputs.empty() && v.op < last_reader_)
        v.last_slot_use = std::max(v.last_slot_use, last_reader_);
  }

  int take_slot() {
    if (free_slots_.empty()) return slots_++;
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }

  // --- instructions ------------------------------------------------------------------------------
  PointwiseOperand operand(int id, int k) {
    const Value& v = value(id);
    const auto index = [](size_t i) { return static_cast<uint8_t>(i); };
    if (v.input >= 0)
      return {PointwiseOperand::Tensor, index(program_->outputs + static_cast<size_t>(v.input))};
    if (v.constant >= 0)
      return {PointwiseOperand::Constant, index(static_cast<size_t>(v.constant))};
    if (v.op == k - 1) return {PointwiseOperand::Accumulator, 0};
    return {PointwiseOperand::Slot, index(static_cast<size_t>(v.slot))};
  }

  void add_instruction(const PointwiseInstruction& instruction) {
    const int at = launch().instruction_count++;
    fail_unless(at < kMaxPointwiseInstructions, "operations", kMaxPointwiseInstructions);
    if (at < kMaxPointwiseInstructions) launch().instructions[at] = instruction;
  }

  // k: the operation that the stores follow.
  void add_stores(const Value& v, int k) {
    for (int output : v.outputs) {
      PointwiseInstruction store;
      store.op = kStore;
      store.slot = static_cast<int8_t>(output);
      if (v.op != k) store.in[0] = {PointwiseOperand::Slot, static_cast<uint8_t>(v.slot)};
      add_instruction(store);
    }
  }

  void emit() {
    for (int k = 0; k < static_cast<int>(operations_.size()); ++k) {
      const Operation& operation = operations_[static_cast<size_t>(k)];
      PointwiseInstruction instruction;
      instruction.op = operation.op;
      instruction.round = operation.round;
      instruction.params = operation.params;
      instruction.arity = static_cast<uint8_t>(operation.in.size());
      for (size_t i = 0; i < operation.in.size(); ++i)
        instruction.in[i] = operand(operation.in[i], k);
      // Operands are read before the result is kept, so a slot that dies here can receive it.
      if (k != last_reader_) free_dying(k);
      Value& out = value(operation.out);
      if (out.last_slot_use >= 0) {
        out.slot = take_slot();
        instruction.slot = static_cast<int8_t>(out.slot);
      }
      add_instruction(instruction);
      if (k < last_reader_) continue;
      if (k == last_reader_) {
        for (const Value& v : values_)
          if (v.op >= 0 && v.op < k) add_stores(v, k);
        free_dying(k);
      }
      add_stores(out, k);
    }
    finish();
  }

  void free_dying(int k) {
    for (const Value& v : values_)
      if (v.slot >= 0 && v.op < k && v.last_slot_use == k) free_slots_.push_back(v.slot);
  }

  void finish() {
    program_->wide = std::any_of(values_.begin(), values_.end(), [](const Value& v) {
      return v.type == Compute::F64 || v.type == Compute::I64;
    });
    const int most_slots = program_->wide ? kMaxWideSlots : kMaxNarrowSlots;
    launch().slots = slots_;
    fail_unless(slots_ <= most_slots, "values at a time", most_slots);
    fail_unless(constants_.size() <= kMaxPointwiseConstants, "constants", kMaxPointwiseConstants);
    fail_unless(params_.size() <= kMaxPointwiseParams, "ops with attributes", kMaxPointwiseParams);
    if (failure_) return;
    std::copy(constants_.begin(), constants_.end(), launch().constants);
    std::copy(params_.begin(), params_.end(), launch().params);
  }

  const StepFacts& facts_;
  std::shared_ptr<PointwiseProgram> program_;
  std::vector<Value> values_;
  std::vector<Operation> operations_;
  std::vector<int> node_values_;
  std::map<int, int> input_values_;
  std::vector<uint64_t> constants_;
  std::vector<MicroParams> params_;
  std::vector<int> free_slots_;
  int slots_ = 0;
  int last_reader_ = 0;
  bool random_ = false;
  Reason failure_;
};

}  // namespace

Reason pointwise_unsupported(const StepFacts& facts) {
  if (facts.outputs.empty()) return "the group has no output";
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  if (real_rank(sizes) > kMaxRank) return str("it has more than ", kMaxRank, " dimensions");
  for (const OperandFacts& output : facts.outputs)
    if (output.layout.sizes != sizes) return "the outputs differ in shape";
  size_t literals = 0;
  const auto is_missing = [](DType dtype) { return is_wide_unsigned(dtype); };
  for (const NodeFacts& node : facts.nodes) {
    if (std::any_of(node.input_dtypes.begin(), node.input_dtypes.end(), is_missing) ||
        is_missing(node.output_dtypes.at(0)))
      return "unsigned integers of more than 8 bits are computed on the host only";
    if (Reason reason = pointwise_node_unsupported(node)) return reason;
    for (const OperandRef& ref : node.inputs) literals += ref.kind == OperandRef::Kind::Literal;
  }
  // A node is one operation with at most one slot and one entry of each table: nothing to try.
  if (real_rank(sizes) <= kMaxPointwiseDims && facts.nodes.size() <= kMaxPointwiseParams &&
      facts.inputs.size() + facts.outputs.size() < kMaxPointwiseTensors &&
      literals <= kMaxPointwiseConstants)
    return {};
  Compiler compiler(facts);
  compiler.compile();
  return compiler.failure();
}

std::shared_ptr<const PointwiseProgram> compile_pointwise(const StepFacts& facts) {
  Compiler compiler(facts);
  std::shared_ptr<const PointwiseProgram> program = compiler.compile();
  const Reason reason = compiler.failure();
  ORTM_ASSERT(!reason, "a pointwise group of ", facts.nodes.size(),
              " nodes is too large: ", *reason);
  return program;
}

void point_launch(PointwiseLaunch& launch, const IterationSpace& space, const Coords& sizes,
                  const std::vector<int64_t>& offsets, int each) {
  launch.rank = space.rank;
  uint64_t total = 1;
  for (int d = 0; d < space.rank; ++d) {
    launch.sizes[d] = FastDivisor(static_cast<uint32_t>(sizes[d]));
    total *= static_cast<uint64_t>(sizes[d]);
  }
  launch.total = static_cast<uint32_t>(total);
  const int last = space.rank - 1;
  const bool rows = sizes[last] % each == 0;
  for (size_t i = 0; i < space.strides.size(); ++i) {
    PointwiseTensor& tensor = launch.tensors[i];
    const int64_t element_bytes = static_cast<int64_t>(size_of(tensor.dtype));
    if (tensor.data)
      tensor.data = static_cast<std::byte*>(tensor.data) + offsets[i] * element_bytes;
    bool uniform = true, linear = true, whole_vectors = true;
    int64_t expected = 1;
    for (int d = last; d >= 0; --d) {
      const int64_t stride = sizes[d] == 1 ? 0 : space.strides[i][d];
      tensor.strides[d] = stride;
      uniform = uniform && stride == 0;
      linear = linear && (sizes[d] == 1 || stride == expected);
      if (d < last) whole_vectors = whole_vectors && stride % each == 0;
      expected *= sizes[d];
    }
    const bool row_vectors = rows && tensor.strides[last] == 1 && whole_vectors;
    tensor.access = uniform  ? PointwiseAccess::Uniform
                    : linear ? PointwiseAccess::Linear
                    : rows   ? PointwiseAccess::Row
                             : PointwiseAccess::General;
    const auto bytes = static_cast<uintptr_t>(each * element_bytes);
    const bool aligned =
        bytes > 0 && reinterpret_cast<uintptr_t>(tensor.data) % std::min<uintptr_t>(bytes, 16) == 0;
    tensor.vectors = aligned && (linear || row_vectors);
  }
}

}  // namespace ortmodule::cuda
