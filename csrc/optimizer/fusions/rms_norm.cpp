// Fuses a root mean square norm written as pointwise ops and a mean. The fused op saves one number
// per row for its gradient instead of three tensors.

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject(const Match& match) {
  const auto* axes = std::get_if<Dims>(match.attrs().find("axes"));
  const auto last = static_cast<int64_t>(match.rank("x")) - 1;
  if (!axes || axes->size() != 1 || ((*axes)[0] != DimExpr(-1) && (*axes)[0] != DimExpr(last)))
    return "the mean is not over the last dim";
  return {};
}

Reason reject_scaled(const Match& match) {
  if (Reason reason = reject(match)) return reason;
  if (match.rank("w") != 1 || match.dims("w")[0] != match.dims("x").back())
    return "the scale is not a vector over the last dim";
  return {};
}

// The casts can go: the op computes 16-bit floats in 32 bits anyway and rounds once.
Reason reject_cast(const Match& match) {
  if (Reason reason = reject(match)) return reason;
  if (match.dtype("x") != match.dtype("y")) return "the result has another type than x";
  if (compute_dtype(match.dtype("x")) != match.dtype("wide"))
    return str(name_of(match.dtype("x")), " is not computed in ", name_of(match.dtype("wide")));
  return {};
}

// The forms with casts or a scale come first, since they contain the plain form.
const RuleSet kRules = {{.name = "RMS norm between casts",
                         .pattern = R"((x, $epsilon) => (y) {
       wide = Cast<to=@wide> (x)
       square = Mul (wide, wide)
       mean = ReduceMean<axes=@axes, keepdims=1> (square)
       sum = Add (mean, epsilon)
       inv = Rsqrt (sum)
       n = Mul (wide, inv)
       y = Cast<to=@narrow> (n)
     })",
                         .replacement = R"((x) => (y) {
       y, _ = SimplifiedLayerNormalization<axis=-1, epsilon=@epsilon> (x)
     })",
                         .reject = reject_cast},
                        {.name = "RMS norm with scale",
                         .pattern = R"((x, w, $epsilon) => (y) {
       square = Mul (x, x)
       mean = ReduceMean<axes=@axes, keepdims=1> (square)
       sum = Add (mean, epsilon)
       inv = Rsqrt (sum)
       n = Mul (x, inv)
       y = Mul (n, w)
     })",
                         .replacement = R"((x, w) => (y) {
       y, _ = SimplifiedLayerNormalization<axis=-1, epsilon=@epsilon> (x, w)
     })",
                         .reject = reject_scaled},
                        {.name = "RMS norm",
                         .pattern = R"((x, $epsilon) => (y) {
       square = Mul (x, x)
       mean = ReduceMean<axes=@axes, keepdims=1> (square)
       sum = Add (mean, epsilon)
       inv = Rsqrt (sum)
       y = Mul (x, inv)
     })",
                         .replacement = R"((x) => (y) {
       y, _ = SimplifiedLayerNormalization<axis=-1, epsilon=@epsilon> (x)
     })",
                         .reject = reject}};

}  // namespace

REGISTER_FUSION(fuse_rms_norm, kRules);

}  // namespace ortmodule
