// MatMul, FusedMatMul and Gemm of matrices so small that torch's dispatch would take as long as the
// product: straight to the BLAS that torch is linked with, which makes the same bits either way.
#include <algorithm>
#include <bit>
#include <optional>

#include "kernels/aten/engine_device.h"
#include "kernels/kernel.h"

// Fortran's interface: matrices are column-major, everything is passed by address. The integers are
// 32 or 64 bits wide, as torch's BLAS was built; the address of an int64_t serves for both where
// the low half comes first. Weak: a torch that hides its BLAS makes these products itself.
extern "C" {
[[gnu::weak]] void sgemm_(const char* trans_a, const char* trans_b, const int64_t* m,
                          const int64_t* n, const int64_t* k, const float* alpha, const float* a,
                          const int64_t* lda, const float* b, const int64_t* ldb, const float* beta,
                          float* c, const int64_t* ldc);
[[gnu::weak]] void dgemm_(const char* trans_a, const char* trans_b, const int64_t* m,
                          const int64_t* n, const int64_t* k, const double* alpha, const double* a,
                          const int64_t* lda, const double* b, const int64_t* ldb,
                          const double* beta, double* c, const int64_t* ldc);
}

namespace ortmodule {
namespace {

/// About 30 us of one core; torch's dispatch takes 2 us.
constexpr int64_t kMostMultiplications = int64_t{1} << 21;

/// Sizes and strides of a matrix, strides in elements.
struct Matrix {
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  Matrix transposed() const { return {columns, rows, column_stride, row_stride}; }
};

/// The matrix that a tensor amounts to with all dimensions but the last as its rows.
std::optional<Matrix> as_matrix(const Layout& layout) {
  const size_t rank = layout.sizes.size();
  if (rank < 2) return std::nullopt;
  Matrix m{layout.sizes[rank - 2], layout.sizes[rank - 1], layout.strides[rank - 2],
           layout.strides[rank - 1]};
  for (size_t d = rank - 2; d-- > 0;) {
    if (layout.sizes[d] == 1) continue;
    if (m.rows == 1) {
      m.row_stride = layout.strides[d];
    } else if (layout.strides[d] != m.rows * m.row_stride) {
      return std::nullopt;
    }
    m.rows *= layout.sizes[d];
  }
  return m;
}

/// How BLAS reads a row-major matrix or the transpose of one.
struct BlasOperand {
  char trans = 'N';
  int64_t leading = 1;  // elements from one row (or column) to the next

  static std::optional<BlasOperand> of(const Matrix& m) {
    if (m.column_stride == 1 || m.columns == 1) {
      if (m.rows == 1) return BlasOperand{'N', m.columns};
      if (m.row_stride >= m.columns) return BlasOperand{'N', m.row_stride};
    }
    if (m.row_stride == 1 || m.rows == 1) {
      if (m.columns == 1) return BlasOperand{'T', m.rows};
      if (m.column_stride >= m.rows) return BlasOperand{'T', m.column_stride};
    }
    return std::nullopt;
  }
};

/// y [m, n] = alpha a [m, k] b [k, n] + beta c, with y row-major.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  BlasOperand a, b;
  double alpha = 1.0, beta = 0.0;
  int64_t c_row_stride = 0, c_column_stride = 0;

  static std::optional<Product> of(const StepFacts& facts);
};

std::optional<Product> Product::of(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  auto a = as_matrix(facts.inputs[0].layout), b = as_matrix(facts.inputs[1].layout);
  const auto y = as_matrix(facts.outputs[0].layout);
  // A batch of matrices is one matrix of all their rows as long as the other factor is one.
  if (!a || !b || !y || facts.inputs[1].layout.sizes.size() != 2) return std::nullopt;
  if (attrs.flag("transA")) {
    if (facts.inputs[0].layout.sizes.size() != 2) return std::nullopt;
    a = a->transposed();
  }
  if (attrs.flag("transB")) b = b->transposed();
  if (y->column_stride != 1 || a->rows != y->rows || b->columns != y->columns) return std::nullopt;
  const auto blas_a = BlasOperand::of(*a), blas_b = BlasOperand::of(*b);
  if (!blas_a || !blas_b) return std::nullopt;
  Product p{y->rows, y->columns, a->columns, *blas_a, *blas_b, attrs.number("alpha", 1.0)};
  if (facts.inputs.size() > 2 && facts.inputs[2].dtype != DType::Undefined) {
    p.beta = attrs.number("beta", 1.0);
    const Layout& c = facts.inputs[2].layout;
    const size_t rank = c.sizes.size();
    if (rank > 0 && c.sizes[rank - 1] != 1) p.c_column_stride = c.strides[rank - 1];
    if (rank > 1 && c.sizes[rank - 2] != 1) p.c_row_stride = c.strides[rank - 2];
  }
  return p;
}

Reason unsupported(const StepFacts& facts) {
  if constexpr (std::endian::native != std::endian::little)
    return "BLAS may want narrower integers";
  const bool is_double = facts.inputs[0].dtype == DType::Float64;
  if (is_double ? dgemm_ == nullptr : sgemm_ == nullptr) return "torch does not export its BLAS";
  const auto p = Product::of(facts);
  if (!p) return "the operands are not one matrix each";
  const int64_t multiplications = p->m * p->n * p->k;
  if (multiplications == 0) return "nothing is multiplied";
  if (multiplications > kMostMultiplications) return "the product is large";
  return {};
}

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<Product>(*Product::of(facts));
}

template <class T>
void spread(const T* c, const Product& p, T* y) {
  for (int64_t row = 0; row < p.m; ++row, y += p.n) {
    const T* from = c + row * p.c_row_stride;
    if (p.c_column_stride == 1)
      std::copy_n(from, p.n, y);
    else
      for (int64_t i = 0; i < p.n; ++i) y[i] = from[i * p.c_column_stride];
  }
}

template <class T, class Gemm>
void run_as(const KernelArgs& args, Gemm* gemm) {
  const auto& p = *static_cast<const Product*>(args.prepared);
  T* y = args.out[0].as<T>();
  if (p.beta != 0.0) spread(args.in[2].as<T>(), p, y);
  const auto alpha = static_cast<T>(p.alpha), beta = static_cast<T>(p.beta);
  // Read column-major, row-major matrices are their transposes: y' = b' a'.
  gemm(&p.b.trans, &p.a.trans, &p.n, &p.m, &p.k, &alpha, args.in[1].as<T>(), &p.b.leading,
       args.in[0].as<T>(), &p.a.leading, &beta, y, &p.n);
}

void run(const KernelArgs& args) {
  if (args.in[0].dtype == DType::Float64)
    run_as<double>(args, dgemm_);
  else
    run_as<float>(args, sgemm_);
}

KernelDef small_product(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = DTypeSet{DType::Float32, DType::Float64},
          .run = run,
          .unsupported = unsupported,
          .prepare = prepare,
          .layout = LayoutRule::Matrix,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any},
          .priority = 1};
}

const KernelRegistrar matmul_blas(small_product("MatMul", "matmul_blas"));
const KernelRegistrar fused_matmul_blas(small_product("FusedMatMul", "fused_matmul_blas"));
const KernelRegistrar gemm_blas(small_product("Gemm", "gemm_blas"));

}  // namespace
}  // namespace ortmodule
