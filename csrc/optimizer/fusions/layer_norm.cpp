// Finds layer norms and softmax that ONNX files of older operator sets, or of other frameworks,
// spell out. For inference on the host, as fuse_activations. `canonicalize` has made squares
// products and quotients of roots Rsqrt before.

#include "ops/infer_rules.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

bool is_last_axis(const Match& match) {
  const std::vector<int64_t> axes = reduced_axes(match.attrs(), match.rank("x"));
  return axes.size() == 1 && axes[0] + 1 == static_cast<int64_t>(match.rank("x"));
}

Reason reject_norm(const Match& match) {
  if (!is_last_axis(match)) return "the mean is not over the last dim";
  if (match.number("epsilon") < 0) return "epsilon is negative";
  return {};
}

Reason reject_vector(const Match& match, std::string_view name) {
  const Value& value = *match.value(name);
  if (value.is_literal() || value.dims != Dims{match.dims("x").back()})
    return str(name, " is not a vector over the last dim");
  if (value.dtype != match.dtype("x")) return str(name, " has another type");
  return {};
}

Reason reject_affine(const Match& match) {
  if (Reason reason = reject_norm(match)) return reason;
  if (Reason reason = reject_vector(match, "w")) return reason;
  return reject_vector(match, "b");
}

Reason reject_softmax(const Match& match) {
  if (reduced_axes(match.attrs(), match.rank("x")).size() != 1)
    return "the sum is not over one dim";
  return {};
}

void derive_axis(Match& match) {
  match.set("axis", DimExpr(reduced_axes(match.attrs(), match.rank("x"))[0]));
}

constexpr std::string_view kAffine = R"((x, w, b) => (y) {
  y, mean, inv = LayerNormalization<axis=-1, epsilon=@epsilon> (x, w, b)
})";

const RuleSet kRules = {{.name = "LayerNormalization",
                         .pattern = R"((x, w, b, $epsilon) => (y) {
       mean = ReduceMean<axes=@axes, keepdims=1> (x)
       d = Sub (x, mean)
       square = Mul (d, d)
       variance = ReduceMean<axes=@axes, keepdims=1> (square)
       sum = Add (variance, epsilon)
       inv = Rsqrt (sum)
       n = Mul (d, inv)
       scaled = Mul (n, w)
       y = Add (scaled, b)
     })",
                         .replacement = kAffine,
                         .reject = reject_affine},
                        {.name = "LayerNormalization as one factor and offset",
                         .pattern = R"((x, w, b, $epsilon) => (y) {
       mean = ReduceMean<axes=@axes, keepdims=1> (x)
       d = Sub (x, mean)
       square = Mul (d, d)
       variance = ReduceMean<axes=@axes, keepdims=1> (square)
       sum = Add (variance, epsilon)
       inv = Rsqrt (sum)
       factor = Mul (inv, w)
       scaled = Mul (x, factor)
       moved = Mul (mean, factor)
       offset = Sub (b, moved)
       y = Add (scaled, offset)
     })",
                         .replacement = kAffine,
                         .reject = reject_affine},
                        {.name = "LayerNormalization without scale",
                         .pattern = R"((x, $epsilon) => (y) {
       mean = ReduceMean<axes=@axes, keepdims=1> (x)
       d = Sub (x, mean)
       square = Mul (d, d)
       variance = ReduceMean<axes=@axes, keepdims=1> (square)
       sum = Add (variance, epsilon)
       inv = Rsqrt (sum)
       y = Mul (d, inv)
     })",
                         .replacement = R"((x) => (y) {
       y, mean, inv = LayerNormalization<axis=-1, epsilon=@epsilon> (x)
     })",
                         .reject = reject_norm},
                        {.name = "Softmax",
                         .pattern = R"((x) => (y) {
       most = ReduceMax<axes=@axes, keepdims=1> (x)
       d = Sub (x, most)
       e = Exp (d)
       sum = ReduceSum<axes=@axes, keepdims=1> (e)
       y = Div (e, sum)
     })",
                         .replacement = "(x) => (y) { y = Softmax<axis=@axis> (x) }",
                         .reject = reject_softmax,
                         .derive = derive_axis}};

bool fuse_layer_norm(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  return apply_rules(graph, kRules, context);
}

}  // namespace

REGISTER_FUSION(fuse_layer_norm, fuse_layer_norm);

}  // namespace ortmodule
