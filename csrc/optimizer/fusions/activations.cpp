// Finds activations that ONNX files spell out in elementary operators, in the ways of torch.onnx,
// tf2onnx and paddle2onnx. One op instead of several leaves its operand with one reader, so that it
// becomes the epilogue of the product or convolution before it. For inference on the host: in
// training a user's operators keep their clusters, and torch's captures have the ops themselves.

#include <cmath>
#include <numbers>

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

// Numbers of files are rounded to 32 bits, or written with seven digits.
bool is_about(double found, double wanted) { return std::abs(found - wanted) < 1e-6 * wanted; }

Reason wants(const Match& match, std::string_view name, double wanted) {
  const double found = match.number(name);
  if (!is_about(found, wanted)) return str(name, " is ", found, ", expected ", wanted);
  return {};
}

Reason reject_root(const Match& match) { return wants(match, "root", std::numbers::sqrt2); }
Reason reject_inverse_root(const Match& match) {
  return wants(match, "root", 1 / std::numbers::sqrt2);
}
Reason reject_sixth(const Match& match) { return wants(match, "sixth", 1.0 / 6.0); }

constexpr std::string_view kGelu = R"((x) => (y) { y = Gelu<approximate="none"> (x) })";
constexpr std::string_view kSilu = "(x) => (y) { y = Silu (x) }";
constexpr std::string_view kHardSigmoid = "(x) => (y) { y = HardSigmoid (x) }";
constexpr std::string_view kHardSwish = "(x) => (y) { y = HardSwish (x) }";

const RuleSet kRules = {{.name = "Silu",
                         .pattern = "(x) => (y) { s = Sigmoid (x)  y = Mul (x, s) }",
                         .replacement = kSilu},
                        {.name = "HardSigmoid of a divided sum",
                         .pattern = R"((x) => (y) {
       shifted = Add (x, 3.0)
       bounded = Clip<min=0.0, max=6.0> (shifted)
       y = Div (bounded, 6.0)
     })",
                         .replacement = kHardSigmoid},
                        {.name = "HardSigmoid of a scaled sum",
                         .pattern = R"((x, $sixth) => (y) {
       shifted = Add (x, 3.0)
       bounded = Clip<min=0.0, max=6.0> (shifted)
       y = Mul (bounded, sixth)
     })",
                         .replacement = kHardSigmoid,
                         .reject = reject_sixth},
                        {.name = "HardSigmoid of a line",
                         .pattern = R"((x, $sixth) => (y) {
       scaled = Mul (x, sixth)
       line = Add (scaled, 0.5)
       y = Clip<min=0.0, max=1.0> (line)
     })",
                         .replacement = kHardSigmoid,
                         .reject = reject_sixth},
                        {.name = "HardSwish",
                         .pattern = "(x) => (y) { gate = HardSigmoid (x)  y = Mul (x, gate) }",
                         .replacement = kHardSwish},
                        {.name = "HardSwish of a divided product",
                         .pattern = R"((x) => (y) {
       shifted = Add (x, 3.0)
       bounded = Clip<min=0.0, max=6.0> (shifted)
       product = Mul (x, bounded)
       y = Div (product, 6.0)
     })",
                         .replacement = kHardSwish},
                        {.name = "HardSwish of a scaled product",
                         .pattern = R"((x, $sixth) => (y) {
       shifted = Add (x, 3.0)
       bounded = Clip<min=0.0, max=6.0> (shifted)
       product = Mul (x, bounded)
       y = Mul (product, sixth)
     })",
                         .replacement = kHardSwish,
                         .reject = reject_sixth},
                        {.name = "Gelu, halved at last",
                         .pattern = R"((x, $root) => (y) {
       scaled = Div (x, root)
       e = Erf (scaled)
       gate = Add (e, 1.0)
       product = Mul (x, gate)
       y = Mul (product, 0.5)
     })",
                         .replacement = kGelu,
                         .reject = reject_root},
                        {.name = "Gelu, scaled and halved at last",
                         .pattern = R"((x, $root) => (y) {
       scaled = Mul (x, root)
       e = Erf (scaled)
       gate = Add (e, 1.0)
       product = Mul (x, gate)
       y = Mul (product, 0.5)
     })",
                         .replacement = kGelu,
                         .reject = reject_inverse_root},
                        {.name = "Gelu, halved first",
                         .pattern = R"((x, $root) => (y) {
       scaled = Div (x, root)
       e = Erf (scaled)
       gate = Add (e, 1.0)
       half = Mul (x, 0.5)
       y = Mul (half, gate)
     })",
                         .replacement = kGelu,
                         .reject = reject_root},
                        {.name = "Gelu, scaled and halved first",
                         .pattern = R"((x, $root) => (y) {
       scaled = Mul (x, root)
       e = Erf (scaled)
       gate = Add (e, 1.0)
       half = Mul (x, 0.5)
       y = Mul (half, gate)
     })",
                         .replacement = kGelu,
                         .reject = reject_inverse_root},
                        {.name = "Gelu, halved gate",
                         .pattern = R"((x, $root) => (y) {
       scaled = Div (x, root)
       e = Erf (scaled)
       gate = Add (e, 1.0)
       half = Mul (gate, 0.5)
       y = Mul (x, half)
     })",
                         .replacement = kGelu,
                         .reject = reject_root},
                        {.name = "Gelu, scaled, halved gate",
                         .pattern = R"((x, $root) => (y) {
       scaled = Mul (x, root)
       e = Erf (scaled)
       gate = Add (e, 1.0)
       half = Mul (gate, 0.5)
       y = Mul (x, half)
     })",
                         .replacement = kGelu,
                         .reject = reject_inverse_root}};

bool fuse_activations(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  return apply_rules(graph, kRules, context);
}

}  // namespace

REGISTER_FUSION(fuse_activations, fuse_activations);

}  // namespace ortmodule
