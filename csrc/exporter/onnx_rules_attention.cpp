// ScaledDotProductAttention in standard ONNX: the L x S matrix is spelled out.
#include <limits>
#include <numeric>

#include "onnx/onnx_rules.h"

namespace ortmodule {
namespace {

using C = const OnnxRuleContext&;

enum Operand : size_t { kQ, kK, kV, kMask };

/// Where `seen` is false, -infinity.
std::string hidden(C c, const std::string& seen, const std::string& scores, DType wide) {
  return c.op("Where", {seen, scores, c.number(-std::numeric_limits<double>::infinity(), wide)});
}

std::string masked(C c, std::string scores, DType wide) {
  if (c.attrs().flag("is_causal")) {
    const size_t rank = c.value(kQ).rank();
    const OnnxTensor yes{DType::Bool, {1}, encode_scalar(1.0, DType::Bool)};
    const std::string sizes = c.b.sizes({c.value(kQ).dims[rank - 2], c.value(kK).dims[rank - 2]});
    const std::string ones = c.op("ConstantOfShape", {sizes}, {{"value", yes}});
    scores = hidden(c, c.op("Trilu", {ones}, {{"upper", int64_t{0}}}), scores, wide);
  }
  if (!c.has(kMask)) return scores;
  if (c.dtype(kMask) == DType::Bool) return hidden(c, c.in(kMask), scores, wide);
  return c.op("Add", {scores, c.cast(c.in(kMask), wide)});
}

/// [.., L, 2]: each row's largest score and 1 / the sum of exp(score - largest), 0 where it is
/// blind.
void set_statistics(C c, const std::string& scores, const std::string& most,
                    const std::string& blind, DType wide) {
  const std::string zero = c.number(0.0, wide);
  const std::string shown = c.op("Where", {blind, zero, most});
  const std::string sum =
      c.op("ReduceSum", {c.op("Exp", {c.op("Sub", {scores, shown})}), c.b.integers({-1})},
           {{"keepdims", int64_t{1}}});
  const std::string inverse = c.op("Where", {blind, zero, c.op("Reciprocal", {sum})});
  c.set(1, "Concat", {shown, inverse}, {{"axis", int64_t{-1}}});
}

void lower_attention(C c) {
  const DType dtype = c.dtype(), wide = compute_dtype(dtype);
  std::vector<int64_t> perm(c.value(kK).rank());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  const std::string keys = c.op("Transpose", {c.cast(c.in(kK), wide)}, {{"perm", perm}});
  const std::string products = c.op("MatMul", {c.cast(c.in(kQ), wide), keys});
  const std::string scores =
      masked(c, c.op("Mul", {products, c.number(c.attrs().number("scale"), wide)}), wide);
  // A row that sees nothing is zero, not NaN.
  const std::string most =
      c.op("ReduceMax", {scores, c.b.integers({-1})}, {{"keepdims", int64_t{1}}});
  const std::string least = c.number(-std::numeric_limits<double>::infinity(), wide);
  const std::string blind = c.op("Equal", {most, least});
  if (c.wanted(1)) set_statistics(c, scores, most, blind, wide);
  const std::string softmax = c.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const std::string seen = c.op("Where", {blind, c.number(0.0, wide), softmax});
  std::string kept = seen;
  if (const double drop = c.attrs().number("ratio"); drop > 0)
    kept = c.op("Dropout", {seen, c.number(drop, DType::Float32), c.number(1.0, DType::Bool)});
  const std::string y = c.op("MatMul", {kept, c.cast(c.in(kV), wide)});
  c.set(0, "Cast", {y}, {{"to", dtype}});
}

const OnnxRuleRegistrar rules({{"ScaledDotProductAttention", lower_attention}});

}  // namespace
}  // namespace ortmodule
