// y = x a + b, or its Relu, where a and b are one number for each row: they stay in registers,
// where tiles would hold a copy for each element. The bits are those of the tiles.
#include "kernels/cpu/pointwise_scaled_rows.h"

#include "kernels/pointwise_activation.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kLeastRow = 16;

/// The tensor that a commutative op of two operands has beside `other`; -1 if it has none.
int tensor_beside(const NodeFacts& node, OperandRef::Kind kind, int index) {
  for (size_t i = 0; i < 2 && node.inputs.size() == 2; ++i) {
    const OperandRef &a = node.inputs[i], &b = node.inputs[1 - i];
    if (a.kind == kind && a.index == index && b.kind == OperandRef::Kind::Input) return b.index;
  }
  return -1;
}

bool is_float_group(const StepFacts& facts) {
  const size_t nodes = facts.nodes.size();
  if (nodes < 2 || nodes > 3 || facts.inputs.size() != 3 || facts.outputs.size() != 1) return false;
  for (const auto* operands : {&facts.inputs, &facts.outputs})
    for (const OperandFacts& operand : *operands)
      if (operand.dtype != DType::Float32) return false;
  for (size_t i = 0; i + 1 < nodes; ++i)
    if (facts.nodes[i].outputs.empty() || facts.nodes[i].outputs[0] >= 0) return false;
  return facts.nodes[0].op == "Mul" && facts.nodes[1].op == "Add" &&
         (nodes == 2 || facts.nodes[2].op == "Relu");
}

void scale_row(const float* x, float a, float b, int64_t count, bool bends, float* y) {
  if (bends) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = formulas::Relu()(x[i] * a + b);
  } else {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * a + b;
  }
}

}  // namespace

void add_scaled_rows(const StepFacts& facts, PointwiseProgram& program) {
  const IterationSpace& space = program.space;
  if (!is_float_group(facts) || program.total == 0 || space.rank == 0) return;
  const auto has_rows = [&](int input) {
    return input >= 0 && space.strides[static_cast<size_t>(input) + 1][space.rank - 1] == 0;
  };
  for (int x = 0; x < 3; ++x) {
    const int factor = tensor_beside(facts.nodes[0], OperandRef::Kind::Input, x),
              offset = tensor_beside(facts.nodes[1], OperandRef::Kind::Register, 0);
    const bool is_dense = space.is_linear(0) && space.is_linear(static_cast<size_t>(x) + 1);
    if (is_dense && has_rows(factor) && has_rows(offset) && space.inner() >= kLeastRow)
      program.scaled_rows = {x, factor, offset, facts.nodes.size() == 3};
  }
}

void run_scaled_rows(const PointwiseProgram& program, const KernelArgs& args) {
  const int factor = program.scaled_rows.factor, offset = program.scaled_rows.offset;
  const bool bends = program.scaled_rows.bends;
  const IterationSpace& space = program.space;
  const int64_t inner = space.inner();
  const auto tensor = [&](int input) { return args.in[static_cast<size_t>(input)].as<float>(); };
  const float *from = tensor(program.scaled_rows.x), *factors = tensor(factor),
              *offsets = tensor(offset);
  float* to = args.out[0].as<float>();
  const Coords &a_strides = space.strides[static_cast<size_t>(factor) + 1],
               &b_strides = space.strides[static_cast<size_t>(offset) + 1];
  const auto run_rows = [&](int64_t begin, int64_t end) {
    Coords coords = space.unravel(begin * inner);
    int64_t a_at = space.offset(static_cast<size_t>(factor) + 1, coords),
            b_at = space.offset(static_cast<size_t>(offset) + 1, coords);
    for (int64_t row = begin; row < end; ++row) {
      scale_row(from + row * inner, factors[a_at], offsets[b_at], inner, bends, to + row * inner);
      for (int d = space.rank - 2; d >= 0; --d) {  // the next row
        a_at += a_strides[d];
        b_at += b_strides[d];
        if (++coords[d] < space.sizes[d]) break;
        a_at -= a_strides[d] * space.sizes[d];
        b_at -= b_strides[d] * space.sizes[d];
        coords[d] = 0;
      }
    }
  };
  parallel_ranges(args.context, program.total / inner, grain_for(inner), run_rows);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
