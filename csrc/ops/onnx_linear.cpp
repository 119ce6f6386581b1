// Import of determinants.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// ---- Det ---------------------------------------------------------------------------------------

// A minor of the first rows is the sum, over its columns j, of the element of the last row times
// the minor of the rows before without column j (Laplace), with alternating signs.
struct MinorTerms {
  KnownValue columns{DType::Int64, {}, {}}, minors{DType::Int64, {}, {}};
  KnownValue signs{DType::Float64, {}, {}};
};

// The subsets of `size` columns in the order in which minors are kept.
std::vector<uint32_t> subsets(int64_t columns, int size) {
  std::vector<uint32_t> found;
  for (uint32_t set = 0; set < (uint32_t{1} << columns); ++set)
    if (std::popcount(set) == size) found.push_back(set);
  return found;
}

MinorTerms minor_terms(int64_t columns, int rows) {
  MinorTerms terms;
  const std::vector<uint32_t> before = subsets(columns, rows - 1), now = subsets(columns, rows);
  for (uint32_t set : now) {
    int at = 0;  // of the column within the set
    for (int64_t j = 0; j < columns; ++j) {
      const uint32_t bit = uint32_t{1} << j;
      if (!(set & bit)) continue;
      const auto without = std::lower_bound(before.begin(), before.end(), set & ~bit);
      terms.columns.elements.emplace_back(j);
      terms.minors.elements.emplace_back(static_cast<int64_t>(without - before.begin()));
      terms.signs.elements.push_back(KnownNumber::real((rows - 1 + at) % 2 == 0 ? 1 : -1));
      ++at;
    }
  }
  const std::vector<int64_t> dims{static_cast<int64_t>(now.size()), rows};
  terms.columns.dims = terms.minors.dims = terms.signs.dims = dims;
  return terms;
}

// In float64, without a division, so that no pivot is needed.
Values import_det(OnnxCall& c) {
  Value* x = c.in(0);
  constexpr int64_t kMostRows = 10;  // 252 minors of 5 rows
  if (x->rank() < 2) c.refuse("x must be a matrix");
  const int64_t size = c.sizes().fix(x->dims.at(x->dims.size() - 1));
  if (c.sizes().fix(x->dims.at(x->rank() - 2)) != size) c.refuse("the matrix must be square");
  if (size > kMostRows)
    c.unsupported(str("the matrix must have at most ", kMostRows, " rows, but found ", size));
  const Dims outer(x->dims.begin(), x->dims.end() - 2);
  const DimExpr count = product(outer);
  Value* wide = c.reshape(c.cast(x, DType::Float64), {count, size, size});
  Value* minors = c.full(1.0, {count, 1}, DType::Float64);
  for (int rows = 1; rows <= size; ++rows) {
    const MinorTerms terms = minor_terms(size, rows);
    Value* row = c.reshape(c.slice(wide, 1, rows - 1, rows), {count, size});
    Value* elements = c.emit("Gather", {row, c.constant(terms.columns)}, {{"axis", 1}});
    Value* others = c.emit("Gather", {minors, c.constant(terms.minors)}, {{"axis", 1}});
    Value* product = c.emit("Mul", {c.emit("Mul", {elements, others}), c.constant(terms.signs)});
    minors = c.reduce("ReduceSum", product, {2}, false);
  }
  return {c.cast(c.reshape(minors, outer), x->dtype)};
}

REGISTER_ONNX({{"Det", 11, import_det}});

}  // namespace
}  // namespace ortmodule
