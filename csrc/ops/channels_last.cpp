// y = x in channels-last layout; a view if x already has it

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_channels_last(InferContext& c) {
  if (c.input(0).rank() != 4 && c.input(0).rank() != 5)
    c.fail(str("x must have 4 or 5 dimensions, but found ", dims_text(c.input(0).dims)));
  infer_same_as_input(c);
}

Grads channels_last_grad(GradContext& c) { return {c.dy()}; }

std::optional<Layout> view_channels_last(const Layout& in, const Attrs&, const Sizes&, size_t) {
  if (is_channels_last(in)) return in;
  return std::nullopt;
}

Layout copied_channels_last(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  int64_t next = sizes.at(1);
  for (size_t d = sizes.size() - 1; d >= 2; --d) {
    strides[d] = next;
    next *= sizes[d];
  }
  strides[0] = next;
  return {sizes, strides, 0};
}

REGISTER_OP(ChannelsLast, {.domain = "com.microsoft",
                           .inputs = {"x"},
                           .outputs = {"y"},
                           .kind = OpKind::View,
                           .infer = infer_channels_last,
                           .view = view_channels_last,
                           .copied = copied_channels_last,
                           .keeps_channels_last = always,
                           .grad = channels_last_grad,
                           .onnx = {export_identity}});

}  // namespace
}  // namespace ortmodule
