// y = min(max(x, min), max), with optional bounds; HardTanh has another gradient at the bounds

#include <cmath>
#include <optional>

#include "base/element_value.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// An element equal to a bound has gradient 0.
Grads strict_grad(GradContext& c) {
  std::optional<Handle> inside;
  auto compare = [&](std::string_view op, std::string_view bound) {
    if (!c.attrs().has(bound)) return;
    const Handle met = c.emit(op, {c.x(), c.literal(c.attrs().number(bound), c.x().dtype())});
    inside = inside ? c.emit("And", {*inside, met}) : met;
  };
  compare("Greater", "min");
  compare("Less", "max");
  if (!inside) return {c.dy()};
  return {c.emit("Where", {*inside, c.dy(), c.literal(0.0, c.dy().dtype())})};
}

Grads clip_grad(GradContext& c) {
  if (c.attrs().flag("strict")) return strict_grad(c);
  return {c.emit("ClipGrad", {c.dy(), c.x()}, c.attrs())};
}

Grads clip_grad_grad(GradContext& c) {
  Grads grads(2);
  if (c.needs(0)) grads[0] = c.emit("ClipGrad", {c.dy(), c.x(1)}, c.attrs());
  if (c.needs(1)) grads[1] = c.zeros_for(1);
  return grads;
}

// A bound of NaN makes every element NaN in torch, but not here.
double known_bound(const TorchCall& t, double given) {
  if (std::isnan(given)) t.refuse("a bound is NaN");
  return given;
}

// The bound, which must be exact in `dtype`, since the gradient compares elements with it.
double bound(TorchCall& t, std::string_view name, DType dtype) {
  const double given = known_bound(t, t.number(name)), value = element_value(given, dtype);
  const bool wraps = dtype == DType::UInt8 && given < 0 && given >= -255;
  if (!is_floating(dtype) && value != given && !wraps)
    t.refuse(str("a bound must be a number of type ", name_of(dtype), ", but found ", given));
  return value;
}

Values clipped(TorchCall& t, std::string_view min, std::string_view max) {
  const DType dtype = t.output().dtype;
  Attrs attrs;
  if (!t.is_none(min)) attrs.set("min", bound(t, min, dtype));
  if (!t.is_none(max)) attrs.set("max", bound(t, max, dtype));
  // Before torch 2.14 the gradient of clamp is dy at a bound; that of hardtanh is 0 in all
  // versions.
  if (is_floating(dtype) && t.torch().at_least(2, 14)) attrs.set("strict", DimExpr(1));
  return {t.emit("Clip", {t.operand("self", dtype)}, std::move(attrs))};
}

// A bound that is a size, which is known at run time.
bool is_size(const TorchCall& t, std::string_view name) {
  const auto* given = t.has(name) ? std::get_if<DimExpr>(&t.arg(name).value) : nullptr;
  return given && !given->is_constant();
}

/// x, but the bound where x is beyond it, as in `index.clamp(0, x.size(1) - 1)`.
Value* limited(TorchCall& t, Value* x, std::string_view name) {
  const bool strict = is_floating(x->dtype) && t.torch().at_least(2, 14);
  std::string beyond = name == "min" ? "Less" : "Greater";
  if (strict) beyond += "OrEqual";
  Value* limit = is_size(t, name) ? t.size_literal(t.dim(name), x->dtype)
                                  : t.literal(bound(t, name, x->dtype), x->dtype);
  return t.emit("Where", {t.emit(beyond, {x, limit}), limit, x});
}

Values convert_clamp(TorchCall& t) {
  if (!is_size(t, "min") && !is_size(t, "max")) return clipped(t, "min", "max");
  const DType dtype = t.output().dtype;
  if (compute_dtype(dtype) != dtype || size_of(dtype) < 4)
    t.refuse(str("a bound that is a size may not fit in type ", name_of(dtype)));
  Value* x = t.operand("self", dtype);
  for (std::string_view name : {"min", "max"})
    if (!t.is_none(name)) x = limited(t, x, name);
  return {x};
}

Values hard_tanh(TorchCall& t, double min, double max) {
  require_real(t, true);
  return {t.emit("HardTanh", {t.tensor("self")},
                 {{"min", known_bound(t, min)}, {"max", known_bound(t, max)}})};
}

Values convert_hardtanh(TorchCall& t) {
  return hard_tanh(t, t.number_or("min_val", -1.0), t.number_or("max_val", 1.0));
}

Values convert_relu6(TorchCall& t) { return hard_tanh(t, 0.0, 6.0); }

void export_clip(const OnnxRuleContext& c) {
  auto bound = [&](std::string_view name) {
    return c.attrs().has(name) ? c.number(c.attrs().number(name), c.dtype()) : std::string();
  };
  c.set(0, "Clip", {c.in(0), bound("min"), bound("max")});
}

REGISTER_OP(Clip, {.inputs = {"x"},
                   .outputs = {"y"},
                   .kind = OpKind::Pointwise,
                   .infer = infer_same_as_input,
                   .grad = clip_grad,
                   .onnx = {export_clip},
                   .from_torch = {{"aten.clamp.default", convert_clamp},
                                  {"aten.clamp_min.default", convert_clamp},
                                  {"aten.clamp_max.default", convert_clamp}}});

REGISTER_OP(ClipGrad, {.domain = "com.microsoft",
                       .inputs = {"dy", "x"},
                       .outputs = {"dx"},
                       .kind = OpKind::Pointwise,
                       .infer = infer_broadcast,
                       .grad = clip_grad_grad});

REGISTER_OP(HardTanh, {.domain = "com.microsoft",
                       .inputs = {"x"},
                       .outputs = {"y"},
                       .attrs = {{"min", -1.0}, {"max", 1.0}},
                       .kind = OpKind::Pointwise,
                       .infer = infer_same_as_input,
                       .grad = strict_grad,
                       .body = "hard_tanh (x) => (y) { y = Clip<min=@min, max=@max> (x) }",
                       .from_torch = {{"aten.hardtanh.default", convert_hardtanh},
                                      {"aten.relu6.default", convert_relu6}}});

}  // namespace
}  // namespace ortmodule
