// y.dims[i] = x.dims[perm[i]]

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_transpose(InferContext& c) {
  const Value& x = c.input(0);
  std::vector<int64_t> perm = c.attrs().integers("perm");
  Dims dims;
  for (int64_t from : perm)
    if (from >= 0 && from < static_cast<int64_t>(x.rank()))
      dims.push_back(x.dims[static_cast<size_t>(from)]);
  std::sort(perm.begin(), perm.end());
  const bool distinct = std::adjacent_find(perm.begin(), perm.end()) == perm.end();
  if (dims.size() != x.rank() || perm.size() != x.rank() || !distinct)
    c.fail(str("perm must be a permutation of the dimensions of ", dims_text(x.dims),
               ", but found ", dims_text(c.attrs().dims("perm"))));
  c.set(0, x.dtype, std::move(dims));
}

std::optional<Layout> transpose_view(const Layout& in, const Attrs& attrs, const Sizes& out_sizes,
                                     size_t) {
  Layout out{out_sizes, {}, in.offset};
  for (int64_t from : attrs.integers("perm"))
    out.strides.push_back(in.strides[static_cast<size_t>(from)]);
  return out;
}

Grads transpose_grad(GradContext& c) {
  const std::vector<int64_t> perm = c.attrs().integers("perm");
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i)
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return {c.transpose(c.dy(), inverse)};
}

// --- conversions ------------------------------------------------------------------------------

std::vector<int64_t> identity_perm(size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  return perm;
}

Values permuted(TorchCall& t, const std::vector<int64_t>& perm) {
  Value* x = t.tensor("self");
  if (perm == identity_perm(x->rank())) return {t.emit("Identity", {x})};
  return {t.emit("Transpose", {x}, {{"perm", Dims(perm.begin(), perm.end())}})};
}

Values swapped(TorchCall& t, int64_t a, int64_t b) {
  std::vector<int64_t> perm = identity_perm(t.tensor("self")->rank());
  if (!perm.empty()) std::swap(perm[static_cast<size_t>(a)], perm[static_cast<size_t>(b)]);
  return permuted(t, perm);
}

Values convert_permute(TorchCall& t) {
  return permuted(t, t.axes("dims", t.tensor("self")->rank()));
}

Values convert_transpose(TorchCall& t) {
  const size_t rank = t.tensor("self")->rank();
  const bool axes = t.has("axis0");
  return swapped(t, t.axis(axes ? "axis0" : "dim0", rank), t.axis(axes ? "axis1" : "dim1", rank));
}

Values convert_t(TorchCall& t) {  // also mT: the last two
  const auto rank = static_cast<int64_t>(t.tensor("self")->rank());
  return rank < 2 ? permuted(t, identity_perm(static_cast<size_t>(rank)))
                  : swapped(t, rank - 2, rank - 1);
}

Values convert_reversed(TorchCall& t) {
  std::vector<int64_t> perm = identity_perm(t.tensor("self")->rank());
  std::reverse(perm.begin(), perm.end());
  return permuted(t, perm);
}

// Moves the dims `source` to the positions `destination`; the others keep their order.
Values convert_movedim(TorchCall& t) {
  const size_t rank = t.tensor("self")->rank();
  const std::vector<int64_t> source = t.axes("source", rank);
  const std::vector<int64_t> destination = t.axes("destination", rank);
  if (source.size() != destination.size()) t.refuse("source and destination differ in length");
  std::vector<int64_t> perm(rank, -1);
  for (size_t i = 0; i < source.size() && rank > 0; ++i)
    perm[static_cast<size_t>(destination[i])] = source[i];
  int64_t next = 0;
  for (int64_t& from : perm) {
    if (from >= 0) continue;
    while (std::find(source.begin(), source.end(), next) != source.end()) ++next;
    from = next++;
  }
  return permuted(t, perm);
}

REGISTER_OP(Transpose, {.inputs = {"x"},
                        .outputs = {"y"},
                        .kind = OpKind::View,
                        .infer = infer_transpose,
                        .view = transpose_view,
                        .grad = transpose_grad,
                        .onnx = {export_directly, {"perm"}},
                        .from_torch = {{"aten.permute.default", convert_permute},
                                       {"aten.transpose.int", convert_transpose},
                                       {"aten.swapaxes.default", convert_transpose},
                                       {"aten.swapdims.default", convert_transpose},
                                       {"aten.t.default", convert_t},
                                       {"aten.mT.default", convert_t},
                                       {"aten.numpy_T.default", convert_reversed},
                                       {"aten.movedim.int", convert_movedim},
                                       {"aten.movedim.intlist", convert_movedim},
                                       {"aten.moveaxis.int", convert_movedim},
                                       {"aten.moveaxis.intlist", convert_movedim}}});

RowAxes transpose_rows(const RowQuery& query) {
  const std::vector<int64_t> perm = query.node.attrs.integers("perm");
  const auto found = std::find(perm.begin(), perm.end(), query.axis(0));
  if (query.axis(0) == kWhole) return std::nullopt;
  return std::vector<int>{static_cast<int>(found - perm.begin())};
}
REGISTER_ROW_AXES(transpose_rows, "Transpose");
REGISTER_ROW_NUMBERS(numbers_of_operand, "Transpose");

}  // namespace
}  // namespace ortmodule
