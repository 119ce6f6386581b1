#include "kernels/cpu/pointwise_op.h"

#include <string>

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// Variants that an attribute or a literal operand selects.
std::string variant_name(const NodeFacts& node) {
  if (node.op == "Gelu" || node.op == "GeluGrad")
    return node.attrs.string("approximate", "none") == "tanh" ? node.op + ".tanh" : node.op;
  if (node.op == "Mod") return node.attrs.flag("fmod") ? "Mod.fmod" : node.op;
  if (node.op == "Pow" && node.inputs.size() == 2 &&
      node.inputs[1].kind == OperandRef::Kind::Literal) {
    // The exponents that PyTorch computes without pow, in its way.
    const double exponent = node.inputs[1].literal;
    if (exponent == 2) return "Pow.2";
    if (exponent == 3) return "Pow.3";
    if (exponent == 0.5) return "Pow.half";
    if (exponent == -0.5) return "Pow.minus_half";
    if (exponent == -1) return "Pow.minus_1";
    if (exponent == -2) return "Pow.minus_2";
  }
  return node.op;
}

const MicroOp* find_row(std::string_view name, Compute type) {
  for (std::span<const MicroOp> table : {arithmetic_ops(), comparison_ops(), activation_ops(),
                                         elementary_ops(), gradient_ops(), random_ops()})
    for (const MicroOp& op : table)
      if (op.name == name && op.in == type) return &op;
  return nullptr;
}

}  // namespace

Compute compute_of(DType dtype) {
  switch (dtype) {
    case DType::Float32:
    case DType::Float16:
    case DType::BFloat16: return Compute::F32;
    case DType::Float64: return Compute::F64;
    case DType::Bool: return Compute::Bool;
    default: return Compute::I64;
  }
}

int64_t bytes_of(Compute type) { return type == Compute::F32 ? 4 : type == Compute::Bool ? 1 : 8; }

bool is_stored_as_computed(DType dtype) {
  return dtype == DType::Float32 || dtype == DType::Float64 || dtype == DType::Int64 ||
         dtype == DType::Bool;
}

Compute deciding_type(const NodeFacts& node) {
  const size_t decider = node.op == "Where" ? 1 : 0;
  return compute_of(node.input_dtypes.at(decider));
}

const MicroOp* find_micro_op(const NodeFacts& node) {
  const Compute type = deciding_type(node);
  const std::string variant = variant_name(node);
  const MicroOp* op = find_row(variant, type);
  return op || variant == node.op ? op : find_row(node.op, type);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
