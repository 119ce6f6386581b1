// Complex numbers as pairs of real ones and back: y[..., 0] = Re x, y[..., 1] = Im x. Gradients are
// torch's: the pair of derivatives by the parts is the complex gradient.

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_view_as_real(InferContext& c) {
  const Value& x = c.input(0);
  if (!is_complex(x.dtype)) c.fail(str("x must be complex, but found ", name_of(x.dtype)));
  Dims dims = x.dims;
  dims.emplace_back(2);
  c.set(0, x.dtype == DType::Complex128 ? DType::Float64 : DType::Float32, std::move(dims));
}

std::optional<Layout> view_as_real_view(const Layout& in, const Attrs&, const Sizes& out_sizes,
                                        size_t) {
  Layout out{out_sizes, {}, 2 * in.offset};
  for (int64_t stride : in.strides) out.strides.push_back(2 * stride);
  out.strides.push_back(1);
  return out;
}

Grads view_as_real_grad(GradContext& c) { return {c.emit("ViewAsComplex", {c.dy()})}; }

void infer_view_as_complex(InferContext& c) {
  const Value& x = c.input(0);
  if (x.dtype != DType::Float32 && x.dtype != DType::Float64)
    c.fail(str("x must be f32 or f64, but found ", name_of(x.dtype)));
  if (x.rank() == 0 || !(x.dims.back() == DimExpr(2)))
    c.fail(str("the last size of x must be 2, but found ", dims_text(x.dims)));
  c.set(0, x.dtype == DType::Float64 ? DType::Complex128 : DType::Complex64,
        Dims(x.dims.begin(), x.dims.end() - 1));
}

// Pairs must lie side by side, and begin at even elements.
std::optional<Layout> view_as_complex_view(const Layout& in, const Attrs&, const Sizes& out_sizes,
                                           size_t) {
  if (in.strides.back() != 1 || in.offset % 2 != 0) return {};
  Layout out{out_sizes, {}, in.offset / 2};
  for (size_t d = 0; d < out_sizes.size(); ++d) {
    if (out_sizes[d] > 1 && in.strides[d] % 2 != 0) return {};
    out.strides.push_back(in.strides[d] / 2);
  }
  return out;
}

Grads view_as_complex_grad(GradContext& c) { return {c.emit("ViewAsReal", {c.dy()})}; }

template <OpName op>
Values convert_complex_view(TorchCall& t) {
  return {t.emit(op.text, {t.tensor("self")})};
}

REGISTER_OP(ViewAsReal,
            {.domain = "com.microsoft",
             .inputs = {"x"},
             .outputs = {"y"},
             .kind = OpKind::View,
             .infer = infer_view_as_real,
             .view = view_as_real_view,
             .grad = view_as_real_grad,
             .from_torch = {{"aten.view_as_real.default", convert_complex_view<"ViewAsReal">}}});

REGISTER_OP(ViewAsComplex, {.domain = "com.microsoft",
                            .inputs = {"x"},
                            .outputs = {"y"},
                            .kind = OpKind::View,
                            .infer = infer_view_as_complex,
                            .view = view_as_complex_view,
                            .grad = view_as_complex_grad,
                            .from_torch = {{"aten.view_as_complex.default",
                                            convert_complex_view<"ViewAsComplex">}}});

}  // namespace
}  // namespace ortmodule
