// y = x, there where one of the gradients x2..xn arrives. A user's backward function need not be
// linear: eager calls it with zeros for gradients that are absent, or not at all if all are. What
// goes in and what depends on no gradient passes through gates, so that pruning does the same.
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

std::optional<Layout> same_view(const Layout& in, const Attrs&, const Sizes&, size_t) { return in; }

REGISTER_OP(GradientGate, {.domain = "org.pytorch.aten",
                           .inputs = {"x", "gradients*"},
                           .outputs = {"y"},
                           .kind = OpKind::View,
                           .infer = infer_same_as_input,
                           .view = same_view,
                           .keeps_channels_last = always});

}  // namespace
}  // namespace ortmodule
