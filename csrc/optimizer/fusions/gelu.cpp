// Fuses Gelu's tanh approximation written as eight pointwise ops, with as many saved activations,
// into one op whose gradient needs only x.

#include <cmath>
#include <numbers>

#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

// Models write the constants with 8 to 16 digits, which are equal in float32.
bool is_about(double found, double wanted) { return std::abs(found - wanted) < 1e-7 * wanted; }

Reason reject(const Match& match) {
  const double scale = std::sqrt(2 * std::numbers::inv_pi);
  if (!is_about(match.number("scale"), scale))
    return str("the scale is ", match.number("scale"), ", expected ", scale);
  if (!is_about(match.number("cubic"), 0.044715))
    return str("the cubic factor is ", match.number("cubic"), ", expected 0.044715");
  return {};
}

constexpr std::string_view kGelu = R"((x) => (y) { y = Gelu<approximate="tanh"> (x) })";

const RuleSet kRules = {{.name = "Gelu with x^3",
                         .pattern = R"((x, $scale, $cubic) => (y) {
       half = Mul (x, 0.5)
       square = Mul (x, x)
       cube = Mul (square, x)
       bent = Mul (cube, cubic)
       sum = Add (x, bent)
       scaled = Mul (sum, scale)
       t = Tanh (scaled)
       gate = Add (t, 1.0)
       y = Mul (half, gate)
     })",
                         .replacement = kGelu,
                         .reject = reject},
                        {.name = "Gelu with x (1 + x^2)",
                         .pattern = R"((x, $scale, $cubic) => (y) {
       half = Mul (x, 0.5)
       outer = Mul (x, scale)
       inner = Mul (x, cubic)
       bent = Mul (inner, x)
       sum = Add (bent, 1.0)
       scaled = Mul (outer, sum)
       t = Tanh (scaled)
       gate = Add (t, 1.0)
       y = Mul (half, gate)
     })",
                         .replacement = kGelu,
                         .reject = reject}};

}  // namespace

REGISTER_FUSION(fuse_gelu, kRules);

}  // namespace ortmodule
