// ATen: any operator of torch's dispatcher. Operands are its tensors in argument order;
// `arg_<name>` has each argument, with "tensor:k" and "tensors:k,k" as references to operands. The
// front end adds a traced gradient as CustomGradient; the operators in it are differentiated by
// ATenGrad, which calls torch's own formula, for gradients of gradients. ATenGrad of `order` 2 is
// the gradient of such a gradient, and so on.
#include "base/error.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// The exporter sets the traced types.
void keep_types(InferContext&) {}

// torch's image operators do; group norms require row-major operands.
bool keeps_channels_last(const Node& node) {
  return !node.attrs.string("operator", "").starts_with("aten.native_group_norm");
}

/// A second call would draw other numbers.
bool draws(const Attrs& attrs) {
  if (!attrs.has("random")) return false;
  const Attr* ratio = attrs.find("arg_dropout_p");
  const auto* number = ratio ? std::get_if<double>(ratio) : nullptr;
  return !number || *number != 0.0;
}

// Behind the operands are the gradients of the results that `arrived`; results are the gradients of
// the operands that are `wanted`. Each order has these, and all operands of the one before it.
Grads aten_grad(GradContext& c) {
  ORTM_CHECK(!draws(c.attrs()), "[gradient] a gradient of a gradient must not draw numbers again, ",
             "but ", c.attrs().string("operator"), " does (", c.node().origin.module, ", ",
             c.node().origin.source, "); set ORTMODULE_BYPASS=1 to run the original module");
  std::vector<Handle> operands;
  Dims arrived, wanted;
  for (size_t i = 0; i < c.input_count(); ++i) {
    operands.push_back(c.x(i));
    if (c.needs(i)) wanted.emplace_back(static_cast<int64_t>(i));
  }
  for (size_t k = 0; k < c.node().outputs().size(); ++k) {
    const Handle dy = c.dy(k);
    if (!dy) continue;
    operands.push_back(dy);
    arrived.emplace_back(static_cast<int64_t>(k));
  }
  Attrs attrs = c.attrs();
  const int64_t order = attrs.integer("order", 0) + 1;
  attrs.set("order", order);
  attrs.set(str("arrived_", order), arrived);
  attrs.set(str("wanted_", order), wanted);
  const std::vector<Handle> found = c.emit_all("ATenGrad", operands, attrs, wanted.size());
  Grads grads(c.input_count());
  for (size_t k = 0; k < found.size(); ++k)
    grads[static_cast<size_t>(wanted[k].value())] = found[k];
  return grads;
}

void infer_aten_grad(InferContext& c) {
  const Dims& wanted = c.attrs().dims(str("wanted_", c.attrs().integer("order")));
  for (size_t k = 0; k < wanted.size(); ++k) {
    const Value& operand = c.input(static_cast<size_t>(wanted[k].value()));
    c.set(k, operand.dtype, operand.dims);
  }
}

}  // namespace

REGISTER_OP(ATen, {.domain = "org.pytorch.aten",
                   .inputs = {"tensors*"},
                   .outputs = {"results*"},
                   .kind = OpKind::Opaque,
                   .infer = keep_types,
                   .keeps_channels_last = keeps_channels_last,
                   .grad = aten_grad});

REGISTER_OP(ATenGrad, {.domain = "org.pytorch.aten",
                       .inputs = {"tensors*"},
                       .outputs = {"results*"},
                       .kind = OpKind::Opaque,
                       .infer = infer_aten_grad,
                       .grad = aten_grad});

}  // namespace ortmodule
