// Loops over integers as they lie in memory, of ops whose result in int64, cut to the type, is that
// of the type itself: what wraps around, compares or chooses. Divisions and shifts are not.
#include "kernels/cpu/pointwise_integer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/pointwise_activation.h"
#include "kernels/pointwise_arithmetic.h"
#include "kernels/pointwise_comparison.h"
#include "kernels/pointwise_convert.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// F of unsigned numbers, cut to the type: C++ leaves overflow of signed ones open, to which 16
/// bits are promoted, too.
template <class F>
struct Wrapped {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(F()(static_cast<uint32_t>(a), static_cast<uint32_t>(b)));
  }
};
struct Negated {
  template <class T>
  T operator()(T x) const {
    return static_cast<T>(0u - static_cast<uint32_t>(x));
  }
};
struct Magnitude {
  template <class T>
  T operator()(T x) const {
    return x < T(0) ? Negated()(x) : x;
  }
};
template <class F>
struct Cut {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(F()(a, b));
  }
};
struct SignOf {
  template <class T>
  T operator()(T x) const {
    return static_cast<T>((x > T(0)) - (x < T(0)));
  }
};
struct Inverted {
  template <class T>
  T operator()(T x) const {
    return static_cast<T>(~x);
  }
};
/// With bounds that the type holds, or that bound nothing.
struct Within {
  explicit Within(const MicroParams& p) : low(p.number[0]), high(p.number[1]) {}
  template <class T>
  T operator()(T x) const {
    const T lower = bound<T>(low), upper = bound<T>(high);
    x = x < lower ? lower : x;
    return x > upper ? upper : x;
  }
  template <class T>
  static T bound(double value) {
    using Limits = std::numeric_limits<T>;
    return static_cast<T>(std::clamp<double>(value, Limits::min(), Limits::max()));
  }
  double low, high;
};

struct IntegerOp {
  std::string_view name;
  DType integer;
  MicroFn run;
};

/// ROW(name, loop, functor, type of the result), for operands of a type T.
#define ORTM_NARROW_OPS(ROW)                                    \
  ROW("Add", binary, Wrapped<std::plus<>>, T)                   \
  ROW("Sub", binary, Wrapped<std::minus<>>, T)                  \
  ROW("Mul", binary, Wrapped<std::multiplies<>>, T)             \
  ROW("Max", binary, formulas::Max, T)                          \
  ROW("Min", binary, formulas::Min, T)                          \
  ROW("BitwiseAnd", binary, Cut<std::bit_and<>>, T)             \
  ROW("BitwiseOr", binary, Cut<std::bit_or<>>, T)               \
  ROW("BitwiseXor", binary, Cut<std::bit_xor<>>, T)             \
  ROW("BitwiseNot", unary, Inverted, T)                         \
  ROW("Neg", unary, Negated, T)                                 \
  ROW("Abs", unary, Magnitude, T)                               \
  ROW("Sign", unary, SignOf, T)                                 \
  ROW("Relu", unary, formulas::Relu, T)                         \
  ROW("Clip", unary, Within, T)                                 \
  ROW("HardTanh", unary, Within, T)                             \
  ROW("Equal", binary, formulas::Equal, bool)                   \
  ROW("NotEqual", binary, formulas::NotEqual, bool)             \
  ROW("Less", binary, formulas::Less, bool)                     \
  ROW("LessOrEqual", binary, formulas::LessOrEqual, bool)       \
  ROW("Greater", binary, formulas::Greater, bool)               \
  ROW("GreaterOrEqual", binary, formulas::GreaterOrEqual, bool) \
  ROW("Not", unary, formulas::Not, bool)                        \
  ROW("Where", where, formulas::Where, T)

template <class T>
MicroFn loop_of_type(std::string_view name) {
#define ORTM_NARROW_OP(op, loop, F, Out) \
  if (name == op) return &loop<F, T, Out>;
  ORTM_NARROW_OPS(ORTM_NARROW_OP)
#undef ORTM_NARROW_OP
  return nullptr;
}

// Bytes are cast by way of floats (pointwise_rewrite.cpp).
template <class T>
MicroFn conversion_from(DType to) {
  switch (compute_of(to)) {
    case Compute::F32: return &unary<formulas::Convert<float>, T, float>;
    case Compute::F64: return &unary<formulas::Convert<double>, T, double>;
    case Compute::Bool: return &unary<formulas::Convert<bool>, T, bool>;
    default: return nullptr;
  }
}

bool is_integer(DType dtype) { return compute_of(dtype) == Compute::I64; }

bool holds(DType integer, double number) {
  const double bits = 8.0 * static_cast<double>(size_of(integer));
  const bool is_signed =
      integer == DType::Int8 || integer == DType::Int16 || integer == DType::Int32;
  const double least = is_signed ? -std::exp2(bits - 1) : 0, most = least + std::exp2(bits) - 1;
  return number >= least && number <= most && number == std::trunc(number);
}

// Whether what Clip gives is a number of the type; another one would be cut to it.
bool bounds_are_within(const PointwiseRow& row, const NodeFacts& node, DType integer) {
  MicroParams params;
  row.configure(node, params);
  const double low = std::trunc(params.number[0]), high = std::trunc(params.number[1]);
  return (low < 0 || holds(integer, low)) && (high > 0 || holds(integer, high));
}

bool is_computed_as(const NodeFacts& node, DType integer) {
  if (node.op == "Cast") {
    const DType from = node.input_dtypes.at(0), to = node.output_dtypes.at(0);
    if (!is_integer(from) && !is_integer(to)) return true;
    return node.inputs[0].kind != OperandRef::Kind::Literal && integer_conversion(from, to);
  }
  const PointwiseRow* row = find_pointwise_row(node);
  if (!row || row->in != Compute::I64) return row && row->out != Compute::I64;
  for (const OperandRef& ref : node.inputs)
    if (ref.kind == OperandRef::Kind::Literal && !holds(integer, ref.literal)) return false;
  const bool clips = row->name == "Clip" || row->name == "HardTanh";
  return (!clips || bounds_are_within(*row, node, integer)) && integer_loop(row->name, integer);
}

}  // namespace

MicroFn integer_loop(std::string_view name, DType integer) {
  switch (integer) {
    case DType::Int32: return loop_of_type<int32_t>(name);
    case DType::UInt32: return loop_of_type<uint32_t>(name);
    case DType::Int16: return loop_of_type<int16_t>(name);
    case DType::UInt16: return loop_of_type<uint16_t>(name);
    case DType::Int8: return loop_of_type<int8_t>(name);
    case DType::UInt8: return loop_of_type<uint8_t>(name);
    default: return nullptr;
  }
}

MicroFn integer_conversion(DType from, DType to) {
  if (from == DType::Int32) return conversion_from<int32_t>(to);
  if (from == DType::Int16) return conversion_from<int16_t>(to);
  if (from == DType::Bool && to == DType::Int32)
    return &unary<formulas::Convert<int32_t>, bool, int32_t>;
  if (from == DType::Float32 && to == DType::Int32)
    return &unary<formulas::Convert<int32_t>, float, int32_t>;
  return nullptr;
}

std::optional<DType> integer_of_group(const StepFacts& facts) {
  std::optional<DType> found;
  const auto fits = [&](DType dtype) {
    if (!is_integer(dtype)) return true;
    if (!found) found = dtype;
    return dtype == *found && dtype != DType::Int64;
  };
  for (const OperandFacts& input : facts.inputs)
    if (!fits(input.dtype)) return std::nullopt;
  for (const OperandFacts& output : facts.outputs)
    if (!fits(output.dtype)) return std::nullopt;
  for (const NodeFacts& node : facts.nodes) {
    for (DType dtype : node.output_dtypes)
      if (!fits(dtype)) return std::nullopt;
  }
  if (!found) return std::nullopt;
  for (const NodeFacts& node : facts.nodes)
    if (!is_computed_as(node, *found)) return std::nullopt;
  return found;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
