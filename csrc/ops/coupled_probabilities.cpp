// The probabilities of `classes` classes from those of each pair, [rows, pairs] with pairs (0, 1),
// (0, 2) ... (1, 2) ... of the first class: Wu, Lin, Weng, "Probability estimates for multi-class
// classification by pairwise coupling" (2004), algorithm 2.
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_coupled(InferContext& c) {
  const Value& x = c.input(0);
  const int64_t classes = c.attrs().integer("classes");
  constexpr int64_t kMostClasses = 65535;
  if (classes < 2 || classes > kMostClasses)
    c.fail(str("there must be 2 to ", kMostClasses, " classes, but found ", classes));
  if (x.rank() != 2 || x.dtype != DType::Float32 ||
      !may_equal(x.dims.at(1), DimExpr(classes * (classes - 1) / 2)))
    c.fail(str("there must be a probability for each pair in f32, but found ", name_of(x.dtype),
               " ", dims_text(x.dims)));
  c.set(0, DType::Float32, {x.dims.at(0), classes});
}

REGISTER_OP(CoupledProbabilities, {.domain = "com.microsoft",
                                   .inputs = {"pairs"},
                                   .outputs = {"y"},
                                   .attrs = {{"classes", 2}},
                                   .kind = OpKind::Norm,
                                   .infer = infer_coupled,
                                   .non_differentiable = {0}});

}  // namespace
}  // namespace ortmodule
