#include "kernels/matmul_problem.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ortmodule {
namespace {

/// An operand after its flip, broadcast to the batch dimensions of the result.
struct Operand {
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
  Sizes batch_strides;  // one per batch dimension, 0 where broadcast

  Operand(const Layout& layout, size_t batch_rank, bool transposed) {
    const size_t matrix = layout.sizes.size() - 2;
    rows = layout.sizes[matrix];
    columns = layout.sizes[matrix + 1];
    row_stride = layout.strides[matrix];
    column_stride = layout.strides[matrix + 1];
    if (transposed) {
      std::swap(rows, columns);
      std::swap(row_stride, column_stride);
    }
    batch_strides.assign(batch_rank, 0);
    for (size_t i = 0; i < matrix; ++i)
      batch_strides[batch_rank - matrix + i] = layout.sizes[i] == 1 ? 0 : layout.strides[i];
  }

  // A dimension of one element may have any stride, but a library wants one that is large enough.
  BlasMatrix matrix() const {
    BlasMatrix m;
    m.flipped = column_stride != 1 && columns != 1;
    m.leading = m.flipped ? std::max(column_stride, rows) : rows == 1 ? columns : row_stride;
    m.batch_stride = batch_strides.empty() ? 0 : batch_strides.back();
    return m;
  }
};

using Operands = std::array<Operand*, 3>;  // a, b, y

/// Merges neighbouring batch dimensions that all operands step through alike.
void collapse(Sizes& batch, const Operands& operands) {
  for (size_t d = batch.size(); d-- > 1;) {
    const size_t outer = d - 1;
    const bool nests = std::all_of(operands.begin(), operands.end(), [&](const Operand* m) {
      return m->batch_strides[outer] == m->batch_strides[d] * batch[d];
    });
    if (!nests && batch[outer] != 1 && batch[d] != 1) continue;
    const bool drop_outer = batch[outer] == 1 || nests;
    batch[outer] *= batch[d];
    for (Operand* m : operands) {
      if (drop_outer) m->batch_strides[outer] = m->batch_strides[d];
      m->batch_strides.erase(m->batch_strides.begin() + static_cast<std::ptrdiff_t>(d));
    }
    batch.erase(batch.begin() + static_cast<std::ptrdiff_t>(d));
  }
}

/// [batch, M, K] x [K, N] with a's rows nesting in the batch is one product of more rows.
void merge_batch_into_rows(Sizes& batch, Operand& a, const Operand& b, Operand& y) {
  if (batch.size() != 1 || b.batch_strides[0] != 0) return;
  const bool nests =
      a.batch_strides[0] == a.rows * a.row_stride && y.batch_strides[0] == y.rows * y.row_stride;
  if (!nests && batch[0] != 1) return;
  a.rows *= batch[0];
  y.rows *= batch[0];
  for (Operand* m : {&a, &y}) m->batch_strides.clear();
  batch.clear();
}

}  // namespace

MatMulProblem matmul_problem(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  const Layout& result = facts.outputs[0].layout;
  Sizes batch(result.sizes.begin(), result.sizes.end() - 2);
  Operand a(facts.inputs[0].layout, batch.size(), attrs.flag("transA"));
  Operand b(facts.inputs[1].layout, batch.size(), attrs.flag("transB"));
  Operand y(result, batch.size(), false);
  collapse(batch, {&a, &b, &y});
  merge_batch_into_rows(batch, a, b, y);
  if (batch.empty()) b.batch_strides.clear();
  MatMulProblem problem;
  problem.rows = y.rows;
  problem.columns = y.columns;
  problem.inner = a.columns;
  problem.batch = batch.empty() ? 1 : batch.back();
  problem.a = a.matrix();
  problem.b = b.matrix();
  problem.y = y.matrix();
  // The innermost batch dimension goes to the library, the others are counted through.
  Sizes index(batch.empty() ? 0 : batch.size() - 1, 0);
  const bool empty = std::find(batch.begin(), batch.end(), 0) != batch.end();
  for (bool more = !empty; more;) {
    BlasOffsets& call = problem.calls.emplace_back();
    for (size_t d = 0; d < index.size(); ++d) {
      call.a += index[d] * a.batch_strides[d];
      call.b += index[d] * b.batch_strides[d];
      call.y += index[d] * y.batch_strides[d];
    }
    more = false;
    for (size_t d = index.size(); d-- > 0 && !more;) {
      more = ++index[d] < batch[d];
      if (!more) index[d] = 0;
    }
  }
  return problem;
}

}  // namespace ortmodule
