// WeightedGather: y[n, c, p] = sum over taps t of weights[n, t, p] x[n, index[n, t, p], c]: images
// [n, places, channels] read at some places for each point, as an interpolation does. Indices are
// within the image. (The import rules of onnx_sample.cpp make these nodes.)
#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

void infer_weighted_gather(InferContext& c) {
  const Value &x = c.input(0), &index = c.input(1), &weights = c.input(2);
  if (x.rank() != 3 || index.rank() != 3 || !index.dims[1].is_constant() ||
      !may_equal(index.dims, weights.dims) || !may_equal(x.dims[0], index.dims[0]))
    c.fail(str("x must be [images, places, channels], index and weights [images, taps, points], ",
               "but found ", dims_text(x.dims), ", ", dims_text(index.dims), " and ",
               dims_text(weights.dims)));
  if (index.dtype != DType::Int64 || weights.dtype != x.dtype || !is_floating(x.dtype))
    c.fail(str("index must be i64, and weights have the floating type of x, but found ",
               name_of(index.dtype), ", ", name_of(weights.dtype), " and ", name_of(x.dtype)));
  c.set(0, x.dtype, {x.dims[0], x.dims[2], index.dims[2]});
}

double weighted_gather_flops(const Attrs&, const std::vector<Sizes>& in,
                             const std::vector<Sizes>&) {
  return 2.0 * static_cast<double>(element_count(in.at(1))) * static_cast<double>(in.at(0).at(2));
}

std::string weighted_gather_body(const Node& node) {
  const Dims &x = node.input(0)->dims, &index = node.input(1)->dims;
  const DimExpr &images = x[0], &places = x[1], points = images * index[2];
  std::string lines = str("  rows = Reshape<shape=", dims_text({images * places, x[2]}), "> (x)\n",
                          "  first = Range<start=0, limit=", images * places, ", delta=", places,
                          ", dtype=i64> ()\n",
                          "  offset = Reshape<shape=", dims_text({images, DimExpr(1), DimExpr(1)}),
                          "> (first)\n", "  all = Add (index, offset)\n");
  std::string sum;
  for (int64_t t = 0; t < index[1].value(); ++t) {
    const auto tap = [&](std::string_view name, std::string_view of, const Dims& dims) {
      lines +=
          str("  part_", name, t, " = Slice<axis=1, start=", t, ", end=", t + 1, ", step=1> (", of,
              ")\n  ", name, t, " = Reshape<shape=", dims_text(dims), "> (part_", name, t, ")\n");
    };
    tap("place", "all", {points});
    tap("weight", "weights", {points, DimExpr(1)});
    lines += str("  row", t, " = Gather<axis=0> (rows, place", t, ")\n  term", t, " = Mul (row", t,
                 ", weight", t, ")\n");
    if (t > 0) lines += str("  sum", t, " = Add (", sum, ", term", t, ")\n");
    sum = str(t > 0 ? "sum" : "term", t);
  }
  lines += str("  pixels = Reshape<shape=", dims_text({images, index[2], x[2]}), "> (", sum,
               ")\n  y = Transpose<perm=[0,2,1]> (pixels)\n");
  return str("weighted_gather (x, index, weights) => (y) {\n", lines, "}");
}

REGISTER_OP(WeightedGather, {.domain = "com.microsoft",
                             .inputs = {"x", "index", "weights"},
                             .outputs = {"y"},
                             .infer = infer_weighted_gather,
                             .flops = weighted_gather_flops,
                             .body_of = weighted_gather_body});

REGISTER_ROW_AXES(rows_elementwise, "WeightedGather");

}  // namespace
}  // namespace ortmodule
