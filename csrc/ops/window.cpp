// Sizes of sliding windows: out = (in + pads - dilation * (kernel - 1) - 1) / stride + 1

#include "ops/window.h"

#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

DimExpr window_count(const DimExpr& padded, const DimExpr& stride, const DimExpr& inside,
                     bool ceil_mode) {
  const DimExpr slack = ceil_mode ? stride - DimExpr(1) : DimExpr(0);
  const DimExpr count = DimExpr::floor_div(padded + slack, stride) + DimExpr(1);
  if (!ceil_mode || !count.is_constant() || !inside.is_constant()) return count;
  // As in torch, the last window must start inside the input or the left padding.
  const bool begins_outside = (count.value() - 1) * stride.value() >= inside.value();
  return begins_outside ? count - DimExpr(1) : count;
}

}  // namespace

Dims window_dims(InferContext& c, const Dims& kernel) {
  const Dims& in = c.input(0).dims;
  const Dims& strides = c.attrs().dims("strides");
  const Dims& pads = c.attrs().dims("pads");
  const size_t spatial = kernel.size();
  Dims dilations(spatial, DimExpr(1));
  if (c.attrs().has("dilations")) dilations = c.attrs().dims("dilations");
  if (in.size() != spatial + 2 || strides.size() != spatial || pads.size() != 2 * spatial ||
      dilations.size() != spatial)
    c.fail(str("x, strides, pads and dilations must match ", spatial,
               " window dimensions, but found x ", dims_text(in), ", strides ", dims_text(strides),
               ", pads ", dims_text(pads), ", dilations ", dims_text(dilations)));
  const bool ceil_mode = c.attrs().flag("ceil_mode");
  Dims out;
  for (size_t i = 0; i < spatial; ++i) {
    const DimExpr& size = in[i + 2];
    const DimExpr reach = dilations[i] * (kernel[i] - DimExpr(1)) + DimExpr(1);
    const DimExpr padded = size + pads[i] + pads[spatial + i] - reach;
    out.push_back(window_count(padded, strides[i], size + pads[i], ceil_mode));
  }
  return out;
}

Dims window_list(const TorchCall& t, std::string_view name, size_t spatial, const Dims& fallback) {
  Dims list = t.dims(name);
  if (list.empty()) return fallback;
  if (list.size() == 1) list.resize(spatial, list[0]);
  if (list.size() != spatial) t.refuse(str("'", name, "' must have a number per dimension"));
  return list;
}

Dims symmetric_pads(const Dims& padding) {
  Dims pads = padding;
  pads.insert(pads.end(), padding.begin(), padding.end());
  return pads;
}

void check_convolution(InferContext& c) {
  const Value& x = c.input(0);
  const Value& w = c.input(1);
  if (x.dtype != w.dtype)
    c.fail(str("x and w must have the same type, but found ", name_of(x.dtype), " and ",
               name_of(w.dtype)));
  if (x.rank() < 3 || x.rank() != w.rank())
    c.fail(str("x and w must have the same rank of at least 3, but found ", dims_text(x.dims),
               " and ", dims_text(w.dims)));
}

ConvolutionCall read_convolution(TorchCall& t) {
  require_real(t, true);
  Value* x = t.tensor("input");
  Value* w = t.tensor("weight");
  Value* bias = t.optional_tensor("bias");
  if (x->rank() != w->rank() || x->rank() < 3) t.refuse("x must have a batch dimension");
  if (x->dtype != w->dtype || (bias && bias->dtype != x->dtype))
    t.refuse("input, weight and bias must have the same type");
  const size_t spatial = x->rank() - 2;
  const Dims ones(spatial, DimExpr(1)), zeros(spatial, DimExpr(0));
  return {{x, w, bias},
          {{"strides", window_list(t, "stride", spatial, ones)},
           {"pads", symmetric_pads(window_list(t, "padding", spatial, zeros))},
           {"dilations", window_list(t, "dilation", spatial, ones)},
           {"group", t.integer_or("groups", 1)}},
          spatial};
}

Grads bilinear_grad_grad(GradContext& c, std::string_view op) {
  const Handle dy = c.x(0), x = c.x(1), w = c.x(2), u = c.dy(0), v = c.dy(1), b = c.dy(2);
  Grads grads(3);
  if (c.needs(0)) {
    Handle sum;
    const auto add = [&](Handle term) { sum = sum ? sum + term : term; };
    if (u) add(c.emit(op, {u, w}, c.attrs()));
    if (v) add(c.emit(op, {x, v}, c.attrs()));
    if (b) {
      Dims per_channel(dy.dims().size(), DimExpr(1));
      per_channel[1] = dy.dims()[1];
      add(c.emit("Expand", {c.reshape(b, per_channel)}, {{"shape", dy.dims()}}));
    }
    grads[0] = sum;
  }
  if (c.needs(1) && v) grads[1] = c.emit_all(c.node().op, {dy, x, v}, c.attrs())[0];
  if (c.needs(2) && u) grads[2] = c.emit_all(c.node().op, {dy, u, w}, c.attrs())[1];
  return grads;
}

}  // namespace ortmodule
