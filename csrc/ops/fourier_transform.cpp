// The discrete Fourier transform of x [.., given, 1 or 2], whose last dimension holds real and
// imaginary parts; elements from `given` to `length` are 0. Forward: y [.., frequencies, 2], of
// which `onesided` leaves length / 2 + 1. Inverse: y [.., length, 2], or real [.., length, 1] of
// one half of a spectrum.

#include <algorithm>
#include <cmath>

#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

void infer_fourier(InferContext& c) {
  const Value& x = c.input(0);
  const int64_t length = c.attrs().integer("length");
  const bool inverse = c.attrs().flag("inverse"), one_sided = c.attrs().flag("onesided");
  if (x.rank() < 2 || (x.dtype != DType::Float32 && x.dtype != DType::Float64) || length < 1)
    c.fail(str("x must be f32 or f64 [.., n, parts] and length positive, but found ",
               name_of(x.dtype), dims_text(x.dims), " and ", length));
  Dims dims = x.dims;
  dims.at(dims.size() - 2) = one_sided && !inverse ? length / 2 + 1 : length;
  dims.back() = one_sided && inverse ? 1 : 2;
  c.set(0, x.dtype, dims);
}

double fourier_flops(const Attrs& attrs, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  const int64_t rows = element_count(in.at(0)) /
                       std::max<int64_t>(1, in.at(0).back() * in.at(0).at(in.at(0).size() - 2));
  const auto length = static_cast<double>(attrs.integer("length"));
  return 5.0 * static_cast<double>(rows) * length * std::log2(length + 1);
}

// The length tells how many elements there are, or count as 0.
void write_fourier(const OnnxRuleContext& c) {
  const auto axis = static_cast<double>(c.value(0).rank()) - 2;
  const auto length = static_cast<double>(c.attrs().integer("length"));
  c.set(0, "DFT", {c.in(0), c.number(length, DType::Int64), c.number(axis, DType::Int64)},
        c.pick({"inverse", "onesided"}));
}

RowAxes fourier_rows(const RowQuery& query) { return rows_before(query, query.rank(0) - 2); }

REGISTER_OP(FourierTransform, {.domain = "com.microsoft",
                               .inputs = {"x"},
                               .outputs = {"y"},
                               .attrs = {{"inverse", 0}, {"onesided", 0}},
                               .infer = infer_fourier,
                               .flops = fourier_flops,
                               .onnx = {.write = write_fourier}});
REGISTER_ROW_AXES(fourier_rows, "FourierTransform");

}  // namespace
}  // namespace ortmodule
