#include "kernels/pointwise_facts.h"

#include <string>

#include "kernels/pointwise_table.h"
#include "kernels/pointwise_unsigned.h"

namespace ortmodule {
namespace {

#define ORTM_POINTWISE_ROW(name, loop, F, In, Out) \
  {name, kComputeOf<In>, kComputeOf<Out>, configure_of<formulas::F>(), is_random<formulas::F>()},
constexpr PointwiseRow kRows[] = {ORTM_POINTWISE_OPS(ORTM_POINTWISE_ROW)
                                      ORTM_UNSIGNED_OPS(ORTM_POINTWISE_ROW)};
#undef ORTM_POINTWISE_ROW

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

const PointwiseRow* find_row(std::string_view name, Compute type) {
  for (const PointwiseRow& row : kRows)
    if (row.name == name && row.in == type) return &row;
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
    case DType::UInt64: return Compute::U64;
    default: return Compute::I64;
  }
}

int64_t bytes_of(Compute type) { return type == Compute::F32 ? 4 : type == Compute::Bool ? 1 : 8; }

bool is_stored_as_computed(DType dtype) {
  return dtype == DType::Float32 || dtype == DType::Float64 || dtype == DType::Int64 ||
         dtype == DType::Bool || dtype == DType::UInt64;
}

bool is_converted_through_int32(DType dtype) {
  return dtype == DType::Int32 || dtype == DType::Int16 || dtype == DType::Int8;
}

Compute deciding_type(const NodeFacts& node) {
  if (node.inputs.empty()) return compute_of(node.output_dtypes.at(0));
  const size_t decider = node.op == "Where" ? 1 : 0;
  return compute_of(node.input_dtypes.at(decider));
}

const PointwiseRow* find_pointwise_row(const NodeFacts& node) {
  const Compute type = deciding_type(node);
  const std::string variant = variant_name(node);
  const PointwiseRow* row = find_row(variant, type);
  return row || variant == node.op ? row : find_row(node.op, type);
}

Reason pointwise_node_unsupported(const NodeFacts& node) {
  constexpr DTypeSet kTypes = kRealTypes | kWideUnsigned;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].kind != OperandRef::Kind::Absent && !kTypes.contains(node.input_dtypes[i]))
      return str(node.op, " of ", name_of(node.input_dtypes[i]), " is not a pointwise kernel");
  if (!kTypes.contains(node.output_dtypes.at(0)))
    return str(node.op, " to ", name_of(node.output_dtypes.at(0)), " is not a pointwise kernel");
  if (node.op == "Cast") return {};
  const PointwiseRow* op = find_pointwise_row(node);
  if (!op) {
    const DType decider =
        node.inputs.empty() ? node.output_dtypes[0] : node.input_dtypes[node.op == "Where" ? 1 : 0];
    return str(node.op, " of ", name_of(decider), " is not a pointwise kernel");
  }
  if (op->out != compute_of(node.output_dtypes[0]))
    return str(node.op, " cannot give ", name_of(node.output_dtypes[0]));
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const OperandRef::Kind kind = node.inputs[i].kind;
    if (kind == OperandRef::Kind::Absent || kind == OperandRef::Kind::Literal) continue;
    const Compute want = node.op == "Where" && i == 0 ? Compute::Bool : op->in;
    if (compute_of(node.input_dtypes[i]) != want)
      return str("operand ", i, " of ", node.op, " is ", name_of(node.input_dtypes[i]),
                 " while operand ", node.op == "Where" ? 1 : 0, " is not");
  }
  return {};
}

}  // namespace ortmodule
