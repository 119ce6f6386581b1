// Groups that make bytes of one tensor of bytes, as dequantizing, an activation and quantizing do:
// the program runs once for each value of a byte, and the results are looked up.
#include "kernels/cpu/pointwise_bytes.h"

#include <algorithm>
#include <array>

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kValues = 256;
/// The table takes as long as so many elements.
constexpr int64_t kLeastElements = 8 * kValues;

bool is_byte_tensor(DType dtype) { return dtype == DType::Int8 || dtype == DType::UInt8; }

// The operand of the table; -1 if the group is no function of one tensor of bytes.
int find_byte_input(const StepFacts& facts) {
  const OperandFacts& output = facts.outputs[0];
  const int64_t count = element_count(output.layout.sizes);
  if (facts.outputs.size() != 1 || !is_byte_tensor(output.dtype) || count < kLeastElements)
    return -1;
  int found = -1;
  for (size_t i = 0; i < facts.inputs.size(); ++i) {
    const OperandFacts& input = facts.inputs[i];
    if (element_count(input.layout.sizes) == 1) continue;
    const bool alike = is_byte_tensor(input.dtype) && input.layout.sizes == output.layout.sizes &&
                       input.layout.strides == output.layout.strides;
    if (found >= 0 || !alike || !is_dense(input.layout)) return -1;
    found = static_cast<int>(i);
  }
  const auto draws = [](const NodeFacts& node) {
    const PointwiseRow* row = find_pointwise_row(node);
    return row && row->random;
  };
  return std::any_of(facts.nodes.begin(), facts.nodes.end(), draws) ? -1 : found;
}

// In rows of 16 bytes, which a shuffle looks up: of indices of other rows it makes zeros.
void look_up(const uint8_t* from, int64_t count, const uint8_t* table, uint8_t* to) {
  int64_t i = 0;
#if defined(__AVX512BW__)
  for (; i + 64 <= count; i += 64) {
    const __m512i x = _mm512_loadu_si512(from + i);
    __m512i y = _mm512_setzero_si512();
    ORTM_UNROLL
    for (int row = 0; row < 16; ++row) {
      const __m512i entries = _mm512_maskz_broadcast_i32x4(
          0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * row)));
      const __m512i inside = _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(16 * row)));
      const __m512i index = _mm512_adds_epu8(inside, _mm512_set1_epi8(0x70));
      y = _mm512_or_si512(y, _mm512_shuffle_epi8(entries, index));
    }
    _mm512_storeu_si512(to + i, y);
  }
#elif defined(__AVX2__)
  for (; i + 32 <= count; i += 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    __m256i y = _mm256_setzero_si256();
    ORTM_UNROLL
    for (int row = 0; row < 16; ++row) {
      const __m256i entries = _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * row)));
      const __m256i inside = _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(16 * row)));
      const __m256i index = _mm256_adds_epu8(inside, _mm256_set1_epi8(0x70));
      y = _mm256_or_si256(y, _mm256_shuffle_epi8(entries, index));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), y);
  }
#endif
  for (; i < count; ++i) to[i] = table[from[i]];
}

}  // namespace

void add_byte_table(const StepFacts& facts, PointwiseProgram& program) {
  const int input = find_byte_input(facts);
  if (input < 0) return;
  StepFacts small = facts;
  const Layout line{{kValues}, {1}};
  small.inputs[static_cast<size_t>(input)].layout = line;
  small.outputs[0].layout = line;
  for (OperandFacts& operand : small.inputs)
    if (&operand != &small.inputs[static_cast<size_t>(input)]) operand.layout = {{}, {}};
  program.byte_input = input;
  program.of_each_byte = compile_pointwise(small);
}

void run_by_table(const PointwiseProgram& program, const KernelArgs& args) {
  const auto input = static_cast<size_t>(program.byte_input);
  alignas(64) std::array<uint8_t, kValues> values, table;
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i);
  std::vector<TensorView> in(args.in.begin(), args.in.end());
  TensorView out = args.out[0];
  in[input].data = values.data();
  out.data = table.data();
  run_pointwise(*program.of_each_byte,
                {args.facts, in, std::span(&out, 1), args.workspace, nullptr, args.context});
  const auto* from = args.in[input].as<uint8_t>();
  auto* to = args.out[0].as<uint8_t>();
  parallel_ranges(args.context, program.total, grain_for(1), [&](int64_t begin, int64_t end) {
    look_up(from + begin, end - begin, table.data(), to + begin);
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
