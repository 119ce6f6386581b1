// MatMul, FusedMatMul and Gemm through torch's GEMM into planned memory. A batched operand is never
// copied: the batch dimensions that do not collapse are looped over.
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "kernels/aten/aten_views.h"

namespace ortmodule {
namespace {

/// One operand of a batched product after broadcasting: strides per batch dimension.
struct BatchedMatrix {
  const TensorView* view = nullptr;
  Sizes batch_strides;  // one per batch dimension of the output, 0 where broadcast
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  BatchedMatrix(const TensorView& v, const Sizes& batch, bool transposed) : view(&v) {
    const int matrix = v.rank - 2;
    rows = v.sizes[matrix];
    columns = v.sizes[matrix + 1];
    row_stride = v.strides[matrix];
    column_stride = v.strides[matrix + 1];
    if (transposed) {
      std::swap(rows, columns);
      std::swap(row_stride, column_stride);
    }
    batch_strides.assign(batch.size(), 0);
    for (int i = 0; i < matrix; ++i) {
      const size_t at = batch.size() - static_cast<size_t>(matrix - i);
      batch_strides[at] = v.sizes[i] == 1 ? 0 : v.strides[i];
    }
  }

  at::Tensor at(int64_t offset, int64_t count, int64_t stride) const {
    TensorView moved = *view;
    moved.data =
        static_cast<char*>(view->data) + offset * static_cast<int64_t>(size_of(view->dtype));
    return as_tensor(moved, {count, rows, columns}, {stride, row_stride, column_stride});
  }
  at::Tensor matrix(int64_t offset, int64_t merged_rows) const {
    TensorView moved = *view;
    moved.data =
        static_cast<char*>(view->data) + offset * static_cast<int64_t>(size_of(view->dtype));
    return as_tensor(moved, {merged_rows, columns}, {row_stride, column_stride});
  }
};

bool nests(const BatchedMatrix& m, const Sizes& batch, size_t outer) {
  return m.batch_strides[outer] == m.batch_strides[outer + 1] * batch[outer + 1];
}

/// Merges neighbouring batch dimensions that all operands step through alike.
void collapse_batch(Sizes& batch, std::vector<BatchedMatrix*> operands) {
  for (size_t d = batch.size(); d-- > 1;) {
    const size_t outer = d - 1;
    const bool all = std::all_of(operands.begin(), operands.end(),
                                 [&](const BatchedMatrix* m) { return nests(*m, batch, outer); });
    if (!all && batch[outer] != 1) continue;
    batch[outer] *= batch[d];
    for (BatchedMatrix* m : operands) {
      m->batch_strides[outer] = m->batch_strides[d];
      m->batch_strides.erase(m->batch_strides.begin() + static_cast<std::ptrdiff_t>(d));
    }
    batch.erase(batch.begin() + static_cast<std::ptrdiff_t>(d));
  }
}

/// Puts the longest batch dimension last, the one that torch goes through itself: broadcast factors
/// leave several dimensions, and a call takes longer than a tiny product. torch has a loop for any
/// strides for those only.
void put_longest_last(Sizes& batch, const std::vector<BatchedMatrix*>& operands,
                      int64_t multiplications) {
  constexpr int64_t kTiny = 400;
  if (multiplications >= kTiny) return;
  const auto longest =
      static_cast<size_t>(std::max_element(batch.begin(), batch.end()) - batch.begin());
  std::swap(batch[longest], batch.back());
  for (BatchedMatrix* m : operands) std::swap(m->batch_strides[longest], m->batch_strides.back());
}

/// [batch, M, K] x [K, N] with a's rows nesting in the batch is one GEMM.
bool merges_into_rows(const BatchedMatrix& a, const BatchedMatrix& b, const BatchedMatrix& y,
                      const Sizes& batch) {
  if (batch.size() != 1) return batch.empty();
  return b.batch_strides[0] == 0 && a.batch_strides[0] == a.rows * a.row_stride &&
         y.batch_strides[0] == y.rows * y.row_stride;
}

/// Calls `product(y, a, b)` for every pair of matrices, or of batches of them, that torch
/// multiplies at once.
template <class Product>
void for_each_product(const TensorView& out, const TensorView& left, const TensorView& right,
                      bool trans_a, bool trans_b, Product product) {
  if (out.element_count() == 0) return;
  Sizes batch(out.sizes, out.sizes + out.rank - 2);
  BatchedMatrix a(left, batch, trans_a), b(right, batch, trans_b), y(out, batch, false);
  collapse_batch(batch, {&a, &b, &y});
  if (merges_into_rows(a, b, y, batch)) {
    const int64_t rows = a.rows * (batch.empty() ? 1 : batch[0]);
    product(y.matrix(0, rows), a.matrix(0, rows), b.matrix(0, b.rows));
    return;
  }
  put_longest_last(batch, {&a, &b, &y}, y.rows * y.columns * a.columns);
  // The last batch dimension goes to the batched GEMM, the others are counted through.
  const size_t inner = batch.size() - 1;
  Sizes index(inner, 0);
  for (bool more = true; more;) {
    int64_t offset_a = 0, offset_b = 0, offset_y = 0;
    for (size_t d = 0; d < inner; ++d) {
      offset_a += index[d] * a.batch_strides[d];
      offset_b += index[d] * b.batch_strides[d];
      offset_y += index[d] * y.batch_strides[d];
    }
    product(y.at(offset_y, batch[inner], y.batch_strides[inner]),
            a.at(offset_a, batch[inner], a.batch_strides[inner]),
            b.at(offset_b, batch[inner], b.batch_strides[inner]));
    more = false;
    for (size_t d = inner; d-- > 0;) {
      if (++index[d] < batch[d]) {
        more = true;
        break;
      }
      index[d] = 0;
    }
  }
}

struct MatMulAttrs {
  double alpha = 1.0;
  double beta = 1.0;
  bool trans_a = false;
  bool trans_b = false;
};

std::shared_ptr<const void> prepare_matmul(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  auto prepared = std::make_shared<MatMulAttrs>();
  prepared->alpha = attrs.number("alpha", 1.0);
  prepared->beta = attrs.number("beta", 1.0);
  prepared->trans_a = attrs.flag("transA");
  prepared->trans_b = attrs.flag("transB");
  return prepared;
}

/// y = alpha * a @ b, of matrices or of batches of them.
void multiply(at::Tensor y, const at::Tensor& a, const at::Tensor& b, double alpha) {
  const bool batched = y.dim() == 3;
  if (alpha == 1.0) {
    batched ? at::bmm_out(y, a, b) : at::mm_out(y, a, b);
  } else {
    batched ? at::baddbmm_out(y, y, a, b, 0, alpha) : at::addmm_out(y, y, a, b, 0, alpha);
  }
}

void matmul(const KernelArgs& args) {
  const auto& attrs = *static_cast<const MatMulAttrs*>(args.prepared);
  for_each_product(args.out[0], args.in[0], args.in[1], attrs.trans_a, attrs.trans_b,
                   [&](const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
                     multiply(y, a, b, attrs.alpha);
                   });
}

// y = alpha * A' @ B' + beta * C, C broadcast to [M, N]
void gemm(const KernelArgs& args) {
  const auto& attrs = *static_cast<const MatMulAttrs*>(args.prepared);
  at::Tensor y = as_tensor(args.out[0]);
  if (y.numel() == 0) return;
  at::Tensor a = as_tensor(args.in[0]);
  at::Tensor b = as_tensor(args.in[1]);
  if (attrs.trans_a) a = a.t();
  if (attrs.trans_b) b = b.t();
  if (args.in.size() > 2 && args.in[2].data) {
    at::addmm_out(y, as_tensor(args.in[2]), a, b, attrs.beta, attrs.alpha);
  } else {
    multiply(y, a, b, attrs.alpha);
  }
}

constexpr DTypeSet kGemmTypes =
    kAllFloats | kIntegers | DTypeSet{DType::Complex64, DType::Complex128};

REGISTER_ATEN_KERNEL({.op = "MatMul",
                      .name = "matmul_aten",
                      .dtypes = kGemmTypes,
                      .run = matmul,
                      .prepare = prepare_matmul,
                      .layout = LayoutRule::Matrix});
REGISTER_ATEN_KERNEL({.op = "FusedMatMul",
                      .name = "fused_matmul_aten",
                      .dtypes = kGemmTypes,
                      .run = matmul,
                      .prepare = prepare_matmul,
                      .layout = LayoutRule::Matrix});
REGISTER_ATEN_KERNEL({.op = "Gemm",
                      .name = "gemm_aten",
                      .dtypes = kGemmTypes,
                      .run = gemm,
                      .prepare = prepare_matmul,
                      .layout = LayoutRule::Matrix,
                      .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any}});

}  // namespace
}  // namespace ortmodule
