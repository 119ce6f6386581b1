// Groups that make bytes of one tensor of bytes, as dequantizing, an activation and quantizing do:
// the program runs once for each value of a byte, and the results are looked up.
#include "kernels/cpu/pointwise_bytes.h"

#include <algorithm>

#include "kernels/cpu/byte_table.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

bool is_byte_tensor(DType dtype) { return dtype == DType::Int8 || dtype == DType::UInt8; }

// The operand of the table; -1 if the group is no function of one tensor of bytes.
int find_byte_input(const StepFacts& facts) {
  const OperandFacts& output = facts.outputs[0];
  const int64_t count = element_count(output.layout.sizes);
  if (facts.outputs.size() != 1 || !is_byte_tensor(output.dtype) || count < kLeastLookedUp)
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

}  // namespace

void add_byte_table(const StepFacts& facts, PointwiseProgram& program) {
  const int input = find_byte_input(facts);
  if (input < 0) return;
  StepFacts small = facts;
  const Layout line{{kByteValues}, {1}};
  small.inputs[static_cast<size_t>(input)].layout = line;
  small.outputs[0].layout = line;
  for (OperandFacts& operand : small.inputs)
    if (&operand != &small.inputs[static_cast<size_t>(input)]) operand.layout = {{}, {}};
  program.byte_input = input;
  program.of_each_byte = compile_pointwise(small);
}

void run_by_table(const PointwiseProgram& program, const KernelArgs& args) {
  const auto input = static_cast<size_t>(program.byte_input);
  ByteTable values = byte_values(), table;
  std::vector<TensorView> in(args.in.begin(), args.in.end());
  TensorView out = args.out[0];
  in[input].data = values.entries;
  out.data = table.entries;
  run_pointwise(*program.of_each_byte,
                {args.facts, in, std::span(&out, 1), args.workspace, nullptr, args.context});
  const auto* from = args.in[input].as<uint8_t>();
  auto* to = args.out[0].as<uint8_t>();
  parallel_ranges(args.context, program.total, grain_for(1), [&](int64_t begin, int64_t end) {
    look_up(table, from + begin, end - begin, to + begin);
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
