// PointwiseGroup: one or many pointwise nodes of one shape in one pass over memory.
// Method: an interpreter. The group is compiled (pointwise_program.cpp) to a program for an
// accumulator machine that every thread runs over four consecutive elements; the program is the
// kernel's parameter, so all threads of a warp take the same branches and read it from the constant
// bank. The newest value stays in registers, values that are wanted later lie in shared memory, and
// operands are read from global memory where they are used. Decoding bounds it, not memory:
// pointwise_source.h writes the same groups as code of a sixth to a half of the instructions. The
// interpreter needs no compiler and starts at once, and its bits are the reference. Each node
// rounds to its own type, and formulas and random words are the CPU's, so that results are those of
// the CPU kernel bit for bit but for functions of the standard library. Bytes moved: each operand
// and each output once.
#include "kernels/cuda/generated_group.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pointwise_program.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/pointwise_convert.h"
#include "kernels/pointwise_table.h"

namespace ortmodule::cuda {
namespace {

constexpr int kEach = kPointwisePerThread;
using formulas::Convert;
using formulas::RoundTo;

// --- values in words -----------------------------------------------------------------------------
// A value of any computation type is kept in a word of 32 bits or, where float64 or integers occur,
// of 64.
template <class T, class Word>
__device__ __forceinline__ T value_of(Word word) {
  if constexpr (std::is_same_v<T, bool>) {
    return word != 0;
  } else if constexpr (sizeof(T) == sizeof(Word)) {
    T value;
    memcpy(&value, &word, sizeof(T));
    return value;
  } else {
    static_assert(std::is_same_v<T, float> || sizeof(T) < sizeof(Word));
    const uint32_t low = static_cast<uint32_t>(word);
    T value;
    memcpy(&value, &low, sizeof(T));
    return value;
  }
}

template <class Word, class T>
__device__ __forceinline__ Word word_of(T value) {
  if constexpr (sizeof(T) == sizeof(Word)) {
    Word word;
    memcpy(&word, &value, sizeof(T));
    return word;
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? Word{1} : Word{0};
  } else {
    uint32_t low;
    memcpy(&low, &value, sizeof(low));
    return low;
  }
}

/// Whether values of T fit into words of Word: what a kernel is compiled for.
template <class T, class Word>
constexpr bool kFits = sizeof(T) <= sizeof(Word);

// --- operations on one element -------------------------------------------------------------------
template <class F, class In, class Out, class Word>
__device__ __forceinline__ Word call(const F& f, Word a, Word b) {
  if constexpr (std::is_invocable_v<F, In>) {
    return word_of<Word>(static_cast<Out>(f(value_of<In>(a))));
  } else {
    return word_of<Word>(static_cast<Out>(f(value_of<In>(a), value_of<In>(b))));
  }
}

// Functions of the standard library and all formulas in double are long, too: one copy each.
template <PointwiseLoop kLoop, class In>
constexpr bool kIsLarge = kLoop == PointwiseLoop::unary_library ||
                          kLoop == PointwiseLoop::binary_library ||
                          kLoop == PointwiseLoop::unary_long_formula ||
                          kLoop == PointwiseLoop::binary_long_formula ||
                          (std::is_same_v<In, double> && (kLoop == PointwiseLoop::unary_formula ||
                                                          kLoop == PointwiseLoop::binary_formula));

/// Word `at` of a block, chosen: an index that is not known would put the block into memory.
__device__ __forceinline__ uint32_t word_at(const PhiloxBlock& words, uint64_t at) {
  const uint32_t low = at % 2 ? words.word[1] : words.word[0];
  const uint32_t high = at % 2 ? words.word[3] : words.word[2];
  return at < 2 ? low : high;
}

template <class F, class In, class Out, class Word>
__device__ ORTM_NOINLINE Word call_large(Word a, Word b, const MicroParams& params) {
  return call<F, In, Out>(make_functor<F>(params), a, b);
}

// --- one thread ----------------------------------------------------------------------------------
template <class Word>
class Machine {
 public:
  __device__ Machine(const PointwiseLaunch& launch, uint32_t position, Word* slots)
      : p_(launch), position_(position), slots_(slots) {
    const uint32_t left = launch.total - position;
    count_ = left < kEach ? static_cast<int>(left) : kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) accumulator_[i] = a_[i] = b_[i] = c_[i] = 0;
  }

  __device__ void run() {
#pragma unroll 1
    for (int i = 0; i < p_.instruction_count; ++i) {
      const PointwiseInstruction& instruction = p_.instructions[i];
      read_operands(instruction);
      if (instruction.op == kPointwiseRows + static_cast<int>(PointwiseExtra::Store)) {
        store(p_.tensors[instruction.slot]);
        continue;
      }
      step(instruction);
      round(instruction.round);
      if (instruction.slot >= 0) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) *slot(instruction.slot, e) = accumulator_[e];
      }
    }
  }

 private:
  // Lanes of a warp lie side by side.
  __device__ __forceinline__ Word* slot(int index, int element) const {
    return slots_ + (index * kEach + element) * static_cast<int>(blockDim.x) +
           static_cast<int>(threadIdx.x);
  }

  // --- memory ------------------------------------------------------------------------------------
  __device__ int64_t offset_of(const PointwiseTensor& tensor, uint32_t position) const {
    int64_t offset = 0;
#pragma unroll 1
    for (int d = p_.rank - 1; d > 0; --d) {
      const uint32_t rest = p_.sizes[d].quotient(position);
      offset += static_cast<int64_t>(position - rest * p_.sizes[d].divisor) * tensor.strides[d];
      position = rest;
    }
    return offset + position * tensor.strides[0];
  }

  // Element of each of the thread's positions.
  __device__ void find_offsets(int64_t (&offsets)[kEach], const PointwiseTensor& tensor) const {
    switch (tensor.access) {
      case PointwiseAccess::Uniform:
#pragma unroll
        for (int e = 0; e < kEach; ++e) offsets[e] = 0;
        return;
      case PointwiseAccess::Linear:
#pragma unroll
        for (int e = 0; e < kEach; ++e) offsets[e] = int64_t{position_} + e;
        return;
      case PointwiseAccess::Row: {
        const int64_t first = offset_of(tensor, position_);
        const int64_t stride = tensor.strides[p_.rank - 1];
#pragma unroll
        for (int e = 0; e < kEach; ++e) offsets[e] = first + e * stride;
        return;
      }
      case PointwiseAccess::General:
#pragma unroll
        for (int e = 0; e < kEach; ++e)
          offsets[e] = e < count_ ? offset_of(tensor, position_ + static_cast<uint32_t>(e)) : 0;
        return;
    }
  }

  // Whether values of a stored type fit: 64-bit words hold all, 32-bit ones no integers.
  template <class Stored>
  static constexpr bool kHolds = sizeof(Word) == 8 ||
                                 (sizeof(Stored) <= 4 &&
                                  (!std::is_integral_v<Stored> || std::is_same_v<Stored, bool>));
  template <class Stored>
  using Computed = std::conditional_t<std::is_integral_v<Stored> && !std::is_same_v<Stored, bool>,
                                      int64_t, ComputeOf<Stored>>;

  template <class Stored>
  __device__ __forceinline__ void load(Word (&to)[kEach], const PointwiseTensor& tensor,
                                       const int64_t (&offsets)[kEach]) const {
    if constexpr (kHolds<Stored>) {
      const Stored* from = static_cast<const Stored*>(tensor.data);
      Stored elements[kEach];
      if (tensor.vectors && count_ == kEach) {
        load_vector(elements, from + offsets[0]);
      } else {
#pragma unroll
        for (int e = 0; e < kEach; ++e) elements[e] = e < count_ ? from[offsets[e]] : Stored{};
      }
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        to[e] = word_of<Word>(static_cast<Computed<Stored>>(computed(elements[e])));
    }
  }

  template <class Stored>
  __device__ __forceinline__ void store_as(const PointwiseTensor& tensor,
                                           const int64_t (&offsets)[kEach]) const {
    if constexpr (kHolds<Stored>) {
      Stored* to = static_cast<Stored*>(tensor.data);
      Stored elements[kEach];
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        elements[e] = stored<Stored>(value_of<Computed<Stored>>(a_[e]));
      if (tensor.vectors && count_ == kEach) {
        store_vector(to + offsets[0], elements);
      } else {
#pragma unroll
        for (int e = 0; e < kEach; ++e)
          if (e < count_) to[offsets[e]] = elements[e];
      }
    }
  }

#define ORTM_FOR_DTYPE(dtype, CALL)              \
  switch (dtype) {                               \
    case DType::Float32: CALL(float); break;     \
    case DType::Float64: CALL(double); break;    \
    case DType::Float16: CALL(Float16); break;   \
    case DType::BFloat16: CALL(BFloat16); break; \
    case DType::Int64: CALL(int64_t); break;     \
    case DType::Int32: CALL(int32_t); break;     \
    case DType::Int16: CALL(int16_t); break;     \
    case DType::Int8: CALL(int8_t); break;       \
    case DType::UInt8: CALL(uint8_t); break;     \
    case DType::Bool: CALL(bool); break;         \
    default: break;                              \
  }

  __device__ __forceinline__ void store(const PointwiseTensor& tensor) const {
    int64_t offsets[kEach];
    find_offsets(offsets, tensor);
#define ORTM_STORE(T) store_as<T>(tensor, offsets)
    ORTM_FOR_DTYPE(tensor.dtype, ORTM_STORE)
#undef ORTM_STORE
  }

  // Operands 0, 1 and 2 to a_, b_ and c_: from the last one, each pushes the others on, so that the
  // code of a read exists once.
  __device__ __forceinline__ void read_operands(const PointwiseInstruction& instruction) {
#pragma unroll 1
    for (int i = instruction.arity - 1; i >= 0; --i) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        c_[e] = b_[e];
        b_[e] = a_[e];
      }
      read(a_, instruction.in[i]);
    }
  }

  __device__ __forceinline__ void read(Word (&to)[kEach], PointwiseOperand operand) const {
    switch (operand.kind) {
      case PointwiseOperand::Accumulator:
#pragma unroll
        for (int e = 0; e < kEach; ++e) to[e] = accumulator_[e];
        return;
      case PointwiseOperand::Slot:
#pragma unroll
        for (int e = 0; e < kEach; ++e) to[e] = *slot(operand.index, e);
        return;
      case PointwiseOperand::Constant:
#pragma unroll
        for (int e = 0; e < kEach; ++e) to[e] = static_cast<Word>(p_.constants[operand.index]);
        return;
      default: {
        const PointwiseTensor& tensor = p_.tensors[operand.index];
        int64_t offsets[kEach];
        find_offsets(offsets, tensor);
#define ORTM_LOAD(T) load<T>(to, tensor, offsets)
        ORTM_FOR_DTYPE(tensor.dtype, ORTM_LOAD)
#undef ORTM_LOAD
      }
    }
  }

  // --- operations --------------------------------------------------------------------------------
  template <PointwiseLoop kLoop, class F, class In, class Out>
  __device__ __forceinline__ void apply(const PointwiseInstruction& instruction) {
    if constexpr (kFits<In, Word> && kFits<Out, Word>) {
      const F f = make_functor<F>(p_.params[instruction.params]);
      if constexpr (std::is_same_v<F, formulas::Dropout>) {
        draw(f, [&](int e, const PhiloxBlock& words, uint64_t at) {
          return f(value_of<In>(a_[e]), word_at(words, at));
        });
      } else if constexpr (std::is_same_v<F, formulas::RandomUniform>) {
        draw<F::template kWords<In>>(f, [&](int, const PhiloxBlock& words, uint64_t at) {
          if constexpr (F::template kWords<In> == 1)
            return f(word_at(words, at));
          else
            return f(word_at(words, at), word_at(words, at + 1));
        });
      } else if constexpr (std::is_same_v<F, formulas::Where>) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) accumulator_[e] = value_of<bool>(a_[e]) ? b_[e] : c_[e];
      } else if constexpr (kIsLarge<kLoop, In>) {
#pragma unroll
        for (int e = 0; e < kEach; ++e)
          accumulator_[e] = call_large<F, In, Out>(a_[e], b_[e], p_.params[instruction.params]);
      } else {
#pragma unroll
        for (int e = 0; e < kEach; ++e) accumulator_[e] = call<F, In, Out>(f, a_[e], b_[e]);
      }
    }
  }

  // formula(e, block, position of the element's first word in it) for the thread's elements, of
  // `kWords` words each. Consecutive logical indices share a Philox block.
  template <int kWords = 1, class F, class Formula>
  __device__ __forceinline__ void draw(const F& f, const Formula& formula) {
    const PointwiseTensor& order = p_.tensors[p_.index_tensor];
    int64_t indices[kEach];
    find_offsets(indices, order);
    const uint64_t seed = seed_of(p_.seed);
    uint64_t block = ~uint64_t{0};
    PhiloxBlock words{};
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const uint64_t first = static_cast<uint64_t>(p_.first_index + indices[e]) * kWords;
      if (first / 4 != block) {
        block = first / 4;
        words = philox_block(seed, f.rng, block);
      }
      accumulator_[e] = word_of<Word>(formula(e, words, first % 4));
    }
  }

  template <class From, class To, class Through = To>
  __device__ __forceinline__ void convert() {
    if constexpr (kFits<From, Word> && kFits<To, Word>) {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        accumulator_[e] = word_of<Word>(static_cast<To>(Convert<Through>()(value_of<From>(a_[e]))));
    }
  }

  __device__ void step(const PointwiseInstruction& instruction);

  template <class Stored, class T>
  __device__ __forceinline__ void round_to() {
    if constexpr (kFits<T, Word>) {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        accumulator_[e] = word_of<Word>(RoundTo<Stored>()(value_of<T>(accumulator_[e])));
    }
  }

  __device__ void round(DType dtype) {
    switch (dtype) {
      case DType::BFloat16: return round_to<BFloat16, float>();
      case DType::Float16: return round_to<Float16, float>();
      case DType::Int32: return round_to<int32_t, int64_t>();
      case DType::Int16: return round_to<int16_t, int64_t>();
      case DType::Int8: return round_to<int8_t, int64_t>();
      case DType::UInt8: return round_to<uint8_t, int64_t>();
      default: return;
    }
  }

  const PointwiseLaunch& p_;
  uint32_t position_;
  int count_;
  Word* slots_;
  Word accumulator_[kEach];
  Word a_[kEach], b_[kEach], c_[kEach];  // operands of the current operation
};

constexpr int convert_index(Compute from, Compute to) {
  return kPointwiseRows + static_cast<int>(PointwiseExtra::Convert) + 4 * static_cast<int>(from) +
         static_cast<int>(to);
}

template <class Word>
__device__ void Machine<Word>::step(const PointwiseInstruction& instruction) {
  using namespace formulas;
  switch (instruction.op) {
#define ORTM_CASE(name, loop, F, In, Out)                \
  case pointwise_index(name, kComputeOf<In>):            \
    apply<PointwiseLoop::loop, F, In, Out>(instruction); \
    break;
    ORTM_POINTWISE_OPS(ORTM_CASE)
#undef ORTM_CASE
#define ORTM_CONVERT(From, To)                          \
  case convert_index(kComputeOf<From>, kComputeOf<To>): \
    convert<From, To>();                                \
    break;
#define ORTM_CONVERT_FROM(From) \
  ORTM_CONVERT(From, float)     \
  ORTM_CONVERT(From, double) ORTM_CONVERT(From, int64_t) ORTM_CONVERT(From, bool)
    ORTM_CONVERT_FROM(float)
    ORTM_CONVERT_FROM(double)
    ORTM_CONVERT_FROM(int64_t)
    ORTM_CONVERT_FROM(bool)
    case kPointwiseRows + static_cast<int>(PointwiseExtra::FloatToInt32):
      convert<float, int64_t, int32_t>();
      break;
    case kPointwiseRows + static_cast<int>(PointwiseExtra::DoubleToInt32):
      convert<double, int64_t, int32_t>();
      break;
#undef ORTM_CONVERT_FROM
#undef ORTM_CONVERT
    default:  // Copy
#pragma unroll
      for (int e = 0; e < kEach; ++e) accumulator_[e] = a_[e];
  }
}

template <class Word>
__global__ __launch_bounds__(kPointwiseThreads) void pointwise_group_cuda(
    ORTM_GRID_CONSTANT(PointwiseLaunch) launch) {
  ORTM_DYNAMIC_SHARED(Word, slots);
  const uint32_t position = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
  if (position >= launch.total) return;
  Machine<Word>(launch, position, slots).run();
}

// --- launches ------------------------------------------------------------------------------------
/// What a plan keeps for a step.
struct PointwiseStep {
  std::shared_ptr<const PointwiseProgram> program;
  std::shared_ptr<GeneratedGroup> generated;  // null: interpreted only
};

class Launcher {
 public:
  explicit Launcher(const KernelArgs& args)
      : step_(*static_cast<const PointwiseStep*>(args.prepared)),
        program_(*step_.program),
        args_(args),
        code_(step_.generated ? step_.generated->code(args.context) : nullptr) {}

  void run() {
    for_each_part(program_.space, [&](const Coords& sizes, const std::vector<int64_t>& offsets,
                                      int64_t total) { launch(sizes, offsets, total); });
  }

 private:
  void launch(const Coords& sizes, const std::vector<int64_t>& offsets, int64_t total) {
    if (code_ && launch_code(sizes, offsets, total)) return;
    const PointwiseLaunch launch = pointed(sizes, offsets, kEach);
    if (program_.wide) {
      start<uint64_t>(launch, total);
    } else {
      start<uint32_t>(launch, total);
    }
  }

  // False if the code is not for this launch.
  bool launch_code(const Coords& sizes, const std::vector<int64_t>& offsets, int64_t total) const {
    const PointwiseSource& source = step_.generated->source();
    const PointwiseLaunch launch = pointed(sizes, offsets, source.each);
    if (!source.fits(launch)) return false;
    const int64_t block = int64_t{kPointwiseThreads} * source.each * source.vectors;
    code_->launch(launch, blocks_for(total, block), args_.context);
    step_.generated->note_launch();
    return true;
  }

  PointwiseLaunch pointed(const Coords& sizes, const std::vector<int64_t>& offsets,
                          int each) const {
    PointwiseLaunch launch = program_.launch;
    for (size_t i = 0; i < program_.outputs; ++i) launch.tensors[i].data = args_.out[i].data;
    for (size_t i = 0; i < program_.inputs; ++i)
      launch.tensors[program_.outputs + i].data = args_.in[i].data;
    if (launch.index_tensor >= 0)
      launch.first_index = offsets[static_cast<size_t>(launch.index_tensor)];
    launch.seed = args_.context.seed;
    point_launch(launch, program_.space, sizes, offsets, each);
    return launch;
  }

  template <class Word>
  void start(const PointwiseLaunch& launch, int64_t total) {
    const size_t slot_bytes = static_cast<size_t>(launch.slots) * kEach * sizeof(Word);
    int threads = kPointwiseThreads;
    while (slot_bytes * static_cast<size_t>(threads) > kSharedBytes) threads /= 2;
    ORTM_LAUNCH(pointwise_group_cuda<Word>, grid_of(blocks_for(total, int64_t{threads} * kEach)),
                threads, slot_bytes * static_cast<size_t>(threads), args_.context, launch);
  }

  const PointwiseStep& step_;
  const PointwiseProgram& program_;
  const KernelArgs& args_;
  const LoadedCode* code_;
};

REGISTER_KERNEL({
    .op = "PointwiseGroup",
    .name = "pointwise_group_cuda",
    .device = Device::CUDA,
    .dtypes = kRealTypes,
    .run = [](const KernelArgs& args) { Launcher(args).run(); },
    .unsupported = pointwise_unsupported,
    .prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
      auto step = std::make_shared<PointwiseStep>();
      step->program = compile_pointwise(facts);
      if (GeneratedCode* code = generated_code()) step->generated = code->group(*step->program);
      return step;
    },
    .layout = LayoutRule::Any,
    .inplace = true,
});

}  // namespace
}  // namespace ortmodule::cuda
