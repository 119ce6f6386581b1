#include "kernels/cuda/pointwise_source.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>

#include "kernels/pointwise_table.h"

namespace ortmodule::cuda {
namespace {

// --- names ---------------------------------------------------------------------------------------
struct RowText {
  const char* functor;
  Compute in, out;
  PointwiseLoop loop;
  bool has_params;
};
#define ORTM_ROW_TEXT(name, loop, F, In, Out)                \
  {#F, kComputeOf<In>, kComputeOf<Out>, PointwiseLoop::loop, \
   std::is_constructible_v<formulas::F, const MicroParams&>},
constexpr RowText kRowTexts[] = {ORTM_POINTWISE_OPS(ORTM_ROW_TEXT)};
#undef ORTM_ROW_TEXT

const char* element_type(DType dtype) {
  switch (dtype) {
    case DType::Float32: return "float";
    case DType::Float16: return "Float16";
    case DType::BFloat16: return "BFloat16";
    case DType::Int64: return "int64_t";
    case DType::Int32: return "int32_t";
    case DType::Int16: return "int16_t";
    case DType::Int8: return "int8_t";
    case DType::UInt8: return "uint8_t";
    case DType::Bool: return "bool";
    default: throw InternalError("generated code has no such element");
  }
}

const char* computation_type(Compute type) {
  switch (type) {
    case Compute::F32: return "float";
    case Compute::I64: return "int64_t";
    case Compute::Bool: return "bool";
    default: throw InternalError("generated code does not compute this type");
  }
}

bool is_unary(PointwiseLoop loop) {
  return loop == PointwiseLoop::unary || loop == PointwiseLoop::unary_formula ||
         loop == PointwiseLoop::unary_long_formula || loop == PointwiseLoop::unary_library;
}

constexpr int extra(PointwiseExtra operation) {
  return kPointwiseRows + static_cast<int>(operation);
}

bool is_half(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

bool is_row(PointwiseAccess access) { return access == PointwiseAccess::Row; }
bool is_general(PointwiseAccess access) { return access == PointwiseAccess::General; }

// --- accesses ------------------------------------------------------------------------------------
/// The launch of the whole space, at aligned addresses.
PointwiseLaunch ideal_launch(const PointwiseProgram& program, int each) {
  PointwiseLaunch launch = program.launch;
  const std::vector<int64_t> offsets(program.space.strides.size(), 0);
  point_launch(launch, program.space, program.space.sizes, offsets, each);
  return launch;
}

size_t tensor_count(const PointwiseProgram& program) { return program.space.strides.size(); }

/// So many tensors that the elements of two vectors would not fit into a thread's registers.
constexpr size_t kManyTensors = 12;

/// Eight elements where that makes accesses of 16 bits whole vectors and spoils no other access.
int elements_of_vector(const PointwiseProgram& program) {
  if (tensor_count(program) >= kManyTensors) return 4;
  bool small = false;
  const PointwiseLaunch four = ideal_launch(program, 4), eight = ideal_launch(program, 8);
  for (size_t i = 0; i < tensor_count(program); ++i) {
    const size_t bytes = size_of(four.tensors[i].dtype);
    small = small || (bytes > 0 && bytes <= 2);
    if (eight.tensors[i].access != four.tensors[i].access ||
        eight.tensors[i].vectors != four.tensors[i].vectors)
      return 4;
  }
  return small ? 8 : 4;
}

// --- the text ------------------------------------------------------------------------------------
class SourceWriter {
 public:
  SourceWriter(const PointwiseProgram& program, const std::string& name) : program_(program) {
    source_.name = name;
    source_.each = elements_of_vector(program);
    source_.vectors = source_.each == 4 && tensor_count(program) < kManyTensors ? 2 : 1;
    launch_ = ideal_launch(program, source_.each);
    source_.rank = launch_.rank;
    for (size_t i = 0; i < tensor_count(program); ++i) {
      source_.accesses.push_back(launch_.tensors[i].access);
      source_.moves_vectors.push_back(launch_.tensors[i].vectors);
    }
    source_.draws_in_order = launch_.index_tensor >= 0 && is_in_order();
  }

  PointwiseSource write() {
    read_program();
    std::string& text = source_.text;
    text += "#include \"kernels/cuda/pointwise_thread.cuh\"\n\n";
    text += "namespace ortmodule::cuda {\nnamespace {\n\n";
    text += str("struct ", source_.name, "_elements {\n");
    text += "template <int kVectors, int kEach>\n";
    text +=
        "static __device__ __forceinline__ void run(const PointwiseLaunch& launch, uint32_t "
        "position,\n";
    text += "                                           uint32_t distance) {\n";
    text += "  using namespace formulas;\n  (void)distance;\n";
    text += before_ + over_vectors(loads_) + over_vectors(over_elements(values_)) +
            over_vectors(stores_);
    text += "}\n};\n\n}  // namespace\n\n";
    text += "extern \"C\" __global__ __launch_bounds__(kPointwiseThreads) void " + source_.name +
            "(\n    const __grid_constant__ PointwiseLaunch launch) {\n";
    text += str("  run_thread<", source_.name, "_elements, ", source_.vectors, ", ", source_.each,
                ">(launch);\n}\n\n}  // namespace ortmodule::cuda\n");
    return std::move(source_);
  }

 private:
  const PointwiseTensor& tensor(int i) const { return launch_.tensors[i]; }
  int64_t inner_stride(int i) const { return tensor(i).strides[launch_.rank - 1]; }

  // Whether a vector's logical indices are consecutive and start at a multiple of its length.
  bool is_in_order() const {
    const int i = launch_.index_tensor;
    if (tensor(i).access == PointwiseAccess::Linear) return true;
    if (!is_row(tensor(i).access) || inner_stride(i) != 1) return false;
    for (int d = 0; d < launch_.rank - 1; ++d)
      if (tensor(i).strides[d] % source_.each != 0) return false;
    return true;
  }

  static std::string over_vectors(const std::string& body) {
    if (body.empty()) return {};
    return "#pragma unroll\n  for (int v = 0; v < kVectors; ++v) {\n"
           "    const uint32_t p = position + v * distance;\n    (void)p;\n" +
           body + "  }\n";
  }
  static std::string over_elements(const std::string& body) {
    if (body.empty()) return {};
    return "#pragma unroll\n    for (int e = 0; e < kEach; ++e) {\n" + body + "    }\n";
  }

  // --- addresses ---------------------------------------------------------------------------------
  // Sum of coordinates times strides, those of the coordinates called `c`.
  std::string sum_of_steps(int i) const {
    std::string sum;
    for (int d = 0; d < launch_.rank; ++d) {
      const int64_t stride = tensor(i).strides[d];
      if (stride == 0) continue;
      const bool narrow = stride >= std::numeric_limits<int32_t>::min() &&
                          stride <= std::numeric_limits<int32_t>::max();
      const std::string at = str("c.at[", d, "]"),
                        of = str("launch.tensors[", i, "].strides[", d, "]");
      sum += sum.empty() ? "" : " + ";
      sum += stride == 1 ? str("int64_t{", at, "}")
             : narrow    ? str("step(", at, ", ", of, ")")
                         : str("int64_t{", at, "} * ", of);
    }
    return sum;
  }

  // Declares the offsets of a tensor's vectors or elements, if they take coordinates.
  void add_offsets(int i) {
    const PointwiseAccess access = tensor(i).access;
    if (is_row(access)) {
      before_ += str("  int64_t o", i, "[kVectors];\n");
      row_offsets_ += str("    o", i, "[v] = ", sum_of_steps(i), ";\n");
    } else if (is_general(access)) {
      before_ += str("  int64_t o", i, "[kVectors][kEach];\n");
      general_offsets_ += str("      o", i, "[v][e] = ", sum_of_steps(i), ";\n");
    }
  }

  // Offset of element e of vector v.
  std::string offset(int i) const {
    switch (tensor(i).access) {
      case PointwiseAccess::Uniform: return "0";
      case PointwiseAccess::Linear: return "p + e";
      case PointwiseAccess::Row:
        return inner_stride(i) == 0   ? str("o", i, "[v]")
               : inner_stride(i) == 1 ? str("o", i, "[v] + e")
                                      : str("o", i, "[v] + step(e, launch.tensors[", i,
                                            "].strides[", launch_.rank - 1, "])");
      case PointwiseAccess::General: return str("o", i, "[v][e]");
    }
    return {};
  }

  // Offset of a vector that is moved at once.
  std::string vector_offset(int i) const {
    return tensor(i).access == PointwiseAccess::Linear ? "p" : str("o", i, "[v]");
  }

  // --- operands ----------------------------------------------------------------------------------
  void add_load(int i) {
    const std::string type = element_type(tensor(i).dtype), t = str("t", i),
                      data = str("static_cast<const ", type, "*>(launch.tensors[", i, "].data)");
    if (tensor(i).access == PointwiseAccess::Uniform) {
      before_ += str("  const ", type, " ", t, " = *", data, ";\n");
      return;
    }
    if (is_row(tensor(i).access) && inner_stride(i) == 0) {
      before_ += str("  ", type, " ", t, "[kVectors];\n");
      reads_ += str("    ", t, "[v] = ", data, "[o", i, "[v]];\n");
      return;
    }
    before_ += str("  ", type, " ", t, "[kVectors][kEach];\n");
    if (tensor(i).vectors) {
      reads_ += str("    load_vector(", t, "[v], ", data, " + ", vector_offset(i), ");\n");
    } else {
      reads_ += over_elements(str("      ", t, "[v][e] = ", data, "[", offset(i), "];\n"));
    }
  }

  std::string tensor_element(int i) const {
    if (tensor(i).access == PointwiseAccess::Uniform) return str("read(t", i, ")");
    if (is_row(tensor(i).access) && inner_stride(i) == 0) return str("read(t", i, "[v])");
    return str("read(t", i, "[v][e])");
  }

  std::string operand(const PointwiseInstruction& instruction, int i) {
    const PointwiseOperand& in = instruction.in[i];
    switch (in.kind) {
      case PointwiseOperand::Accumulator: return accumulator_;
      case PointwiseOperand::Slot: return slots_.at(in.index);
      case PointwiseOperand::Tensor:
        if (loaded_.insert(in.index).second) add_load(in.index);
        return tensor_element(in.index);
      default: return constant(in.index);
    }
  }

  std::string constant(int i) {
    const char* type = computation_type(program_.constant_types.at(static_cast<size_t>(i)));
    if (constants_.insert(i).second)
      before_ += str("  const ", type, " k", i, " = constant<", type, ">(launch, ", i, ");\n");
    return str("k", i);
  }

  // --- operations --------------------------------------------------------------------------------
  // A functor of the row, with its attributes.
  std::string functor(const RowText& row, const PointwiseInstruction& instruction) {
    if (!row.has_params) return str(row.functor, "()");
    const MicroParams& params = launch_.params[instruction.params];
    const std::string f = str("f", int{instruction.params});
    const auto bits = [](uint64_t word) { return str("0x", hex(word), "ull"); };
    const auto number = [&](double x) { return bits(std::bit_cast<uint64_t>(x)); };
    const std::string stream = draws(row)
                                   ? str("launch.params[", int{instruction.params}, "].word[0]")
                                   : bits(params.word[0]);
    if (functors_.insert(instruction.params).second)
      before_ += str("  const ", row.functor, " ", f, "(params_of(", number(params.number[0]), ", ",
                     number(params.number[1]), ", ", stream, ", ", bits(params.word[1]), "));\n");
    return f;
  }

  static std::string hex(uint64_t word) {
    std::string digits;
    for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 15];
    return digits;
  }

  static bool draws(const RowText& row) {
    return row.loop == PointwiseLoop::dropout || row.loop == PointwiseLoop::uniform;
  }

  // The element's random word of the instruction's stream.
  std::string word(const PointwiseInstruction& instruction) {
    const int i = launch_.index_tensor, params = instruction.params;
    const std::string stream = str("f", params, ".rng");
    if (!seeded_) before_ += "  const uint64_t seed = seed_of(launch.seed);\n";
    seeded_ = true;
    if (!source_.draws_in_order)
      return str("philox_word(seed, ", stream, ", launch.first_index + ", offset(i), ")");
    before_ += str("  uint32_t w", params, "[kVectors][kEach];\n");
    draws_ += str("    draw(w", params, "[v], seed, ", stream, ", launch.first_index + ",
                  vector_offset(i), ");\n");
    return str("w", params, "[v][e]");
  }

  std::string row_expression(const PointwiseInstruction& instruction) {
    const RowText& row = kRowTexts[instruction.op];
    const std::string f = functor(row, instruction);
    if (row.loop == PointwiseLoop::uniform) return str(f, "(", word(instruction), ")");
    if (row.loop == PointwiseLoop::where)
      return str(operand(instruction, 0), " ? ", operand(instruction, 1), " : ",
                 operand(instruction, 2));
    const std::string a = operand(instruction, 0);
    if (row.loop == PointwiseLoop::dropout) return str(f, "(", a, ", ", word(instruction), ")");
    if (is_unary(row.loop)) return str(f, "(", a, ")");
    return str(f, "(", a, ", ", operand(instruction, 1), ")");
  }

  // The value and its type.
  std::string expression(const PointwiseInstruction& instruction, Compute& type) {
    const int op = instruction.op;
    if (op < kPointwiseRows) {
      type = kRowTexts[op].out;
      return row_expression(instruction);
    }
    if (op == extra(PointwiseExtra::Copy)) {
      type = copied_type(instruction);
      return operand(instruction, 0);
    }
    if (op == extra(PointwiseExtra::FloatToInt32)) {
      type = Compute::I64;
      return str("Convert<int32_t>()(", operand(instruction, 0), ")");
    }
    const int pair = op - extra(PointwiseExtra::Convert);
    type = static_cast<Compute>(pair % 4);
    return str("Convert<", computation_type(type), ">()(", operand(instruction, 0), ")");
  }

  Compute copied_type(const PointwiseInstruction& instruction) const {
    const PointwiseOperand& in = instruction.in[0];
    switch (in.kind) {
      case PointwiseOperand::Accumulator: return types_.at(accumulator_);
      case PointwiseOperand::Slot: return types_.at(slots_.at(in.index));
      case PointwiseOperand::Tensor: return compute_of(tensor(in.index).dtype);
      default: return program_.constant_types.at(in.index);
    }
  }

  void add_operation(const PointwiseInstruction& instruction, int number) {
    Compute type = Compute::F32;
    const std::string value = expression(instruction, type), name = str("v", number),
                      round = instruction.round == DType::Undefined
                                  ? std::string()
                                  : element_type(instruction.round);
    if (is_half(instruction.round)) {
      values_ +=
          str("      const ", round, " s", number, " = written<", round, ">(", value, ");\n");
      values_ += str("      const float ", name, " = read(s", number, ");\n");
      halves_[name] = {instruction.round, str("s", number)};
    } else {
      const std::string rounded =
          round.empty() ? value : str("RoundTo<", round, ">()(int64_t{", value, "})");
      values_ += str("      const ", computation_type(type), " ", name, " = ", rounded, ";\n");
    }
    types_[name] = type;
    accumulator_ = name;
    if (instruction.slot >= 0) slots_[instruction.slot] = name;
  }

  void add_store(const PointwiseInstruction& instruction) {
    const int i = instruction.slot;
    const std::string type = element_type(tensor(i).dtype), y = str("y", i),
                      value = operand(instruction, 0),
                      data = str("static_cast<", type, "*>(launch.tensors[", i, "].data)");
    const auto half = halves_.find(value);
    const bool is_narrowed = half != halves_.end() && half->second.first == tensor(i).dtype;
    before_ += str("  ", type, " ", y, "[kVectors][kEach];\n");
    values_ +=
        str("      ", y, "[v][e] = ",
            is_narrowed ? half->second.second : str("written<", type, ">(", value, ")"), ";\n");
    if (tensor(i).vectors) {
      stores_ += str("    store_vector(", data, " + ", vector_offset(i), ", ", y, "[v]);\n");
    } else {
      stores_ += over_elements(str("      ", data, "[", offset(i), "] = ", y, "[v][e];\n"));
    }
  }

  void read_program() {
    for (size_t i = 0; i < tensor_count(program_); ++i) add_offsets(static_cast<int>(i));
    for (int i = 0; i < launch_.instruction_count; ++i) {
      const PointwiseInstruction& instruction = launch_.instructions[i];
      if (instruction.op == extra(PointwiseExtra::Store))
        add_store(instruction);
      else
        add_operation(instruction, i);
    }
    const std::string dims = str("Coordinates<", launch_.rank, ">");
    if (!row_offsets_.empty()) loads_ += str("    const ", dims, " c(launch, p);\n", row_offsets_);
    if (!general_offsets_.empty())
      loads_ += over_elements(str("      const ", dims, " c(launch, p + e);\n", general_offsets_));
    loads_ += reads_ + draws_;
  }

  const PointwiseProgram& program_;
  PointwiseLaunch launch_;
  PointwiseSource source_;
  std::string before_, row_offsets_, general_offsets_, reads_, draws_;  // parts of the text
  std::string loads_, values_, stores_;
  std::string accumulator_;
  std::map<int, std::string> slots_;
  std::map<std::string, Compute> types_;
  std::map<std::string, std::pair<DType, std::string>> halves_;  // a value's rounded form
  std::set<int> loaded_, constants_, functors_;
  bool seeded_ = false;
};

}  // namespace

bool PointwiseSource::fits(const PointwiseLaunch& launch) const {
  if (launch.rank != rank) return false;
  if (draws_in_order && launch.first_index % each != 0) return false;
  for (size_t i = 0; i < accesses.size(); ++i)
    if (launch.tensors[i].access != accesses[i] || (moves_vectors[i] && !launch.tensors[i].vectors))
      return false;
  return true;
}

Reason pointwise_source_unsupported(const PointwiseProgram& program) {
  const PointwiseLaunch& launch = program.launch;
  if (program.space.count() == 0) return "it computes no element";
  for (size_t i = 0; i < tensor_count(program); ++i)
    if (launch.tensors[i].dtype == DType::Float64) return "it computes in float64";
  for (int i = 0; i < launch.instruction_count; ++i) {
    const int op = launch.instructions[i].op;
    if (op >= kPointwiseRows) {
      const int pair = op - extra(PointwiseExtra::Convert);
      const auto is_f64 = [](int type) { return type == static_cast<int>(Compute::F64); };
      if (op == extra(PointwiseExtra::DoubleToInt32) ||
          (pair >= 0 && (is_f64(pair / 4) || is_f64(pair % 4))))
        return "it computes in float64";
      continue;
    }
    const RowText& row = kRowTexts[op];
    if (row.in == Compute::F64 || row.out == Compute::F64) return "it computes in float64";
    const bool is_library =
        row.loop == PointwiseLoop::unary_library || std::string_view(row.functor) == "Atan2";
    if (is_library && row.in == Compute::F32)
      return str(row.functor, " is a function of CUDA's library");
  }
  const PointwiseLaunch ideal = ideal_launch(program, kPointwisePerThread);
  for (size_t i = 0; i < program.outputs; ++i)
    if (ideal.tensors[i].access == PointwiseAccess::Uniform) return "it computes one element";
  return {};
}

PointwiseSource pointwise_source(const PointwiseProgram& program, const std::string& name) {
  return SourceWriter(program, name).write();
}

}  // namespace ortmodule::cuda
