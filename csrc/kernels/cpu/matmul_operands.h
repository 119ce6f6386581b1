// What the kernels of MatMul, FusedMatMul and Gemm share: their operands as strided matrices,
// worked out when a plan is made, and the product of those in blocks.
#pragma once

#include <memory>
#include <type_traits>

#include "kernels/cpu/blocked_product.h"
#include "kernels/cpu/streamed_product.h"
#include "kernels/matmul_problem.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// y = alpha a b + beta c for each matrix of a batch.
struct ProductOperands {
  MatMulProblem problem;
  double alpha = 1.0;
  double beta = 0.0;  // of operand 2, broadcast by its strides; 0 without one
  int64_t c_row_stride = 0, c_column_stride = 0;

  explicit ProductOperands(const StepFacts& facts) : problem(matmul_problem(facts)) {
    const Attrs& attrs = facts.node().attrs;
    alpha = attrs.number("alpha", 1.0);
    if (facts.inputs.size() > 2 && facts.inputs[2].dtype != DType::Undefined) {
      beta = attrs.number("beta", 1.0);
      const Layout& c = facts.inputs[2].layout;
      const size_t rank = c.sizes.size();
      if (rank > 0 && c.sizes[rank - 1] != 1) c_column_stride = c.strides[rank - 1];
      if (rank > 1 && c.sizes[rank - 2] != 1) c_row_stride = c.strides[rank - 2];
    }
  }

  int64_t matrices() const { return problem.batch * static_cast<int64_t>(problem.calls.size()); }
  int64_t multiplications() const { return problem.rows * problem.columns * problem.inner; }
};

/// KernelDef::prepare of these kernels.
inline std::shared_ptr<const void> prepare_product(const StepFacts& facts) {
  return std::make_shared<const ProductOperands>(facts);
}

/// The operands of one matrix of the batch; y is row-major.
template <class T>
struct ProductMatrices {
  StridedMatrix<const T> a, b;
  T* y = nullptr;

  ProductMatrices(const KernelArgs& args, const ProductOperands& p, int64_t i) {
    const MatMulProblem& problem = p.problem;
    const BlasOffsets& call = problem.calls[static_cast<size_t>(i / problem.batch)];
    const int64_t at = i % problem.batch;
    a = matrix(args.in[0].as<T>() + call.a + at * problem.a.batch_stride, problem.a, problem.rows,
               problem.inner);
    b = matrix(args.in[1].as<T>() + call.b + at * problem.b.batch_stride, problem.b, problem.inner,
               problem.columns);
    y = args.out[0].as<T>() + call.y + at * problem.y.batch_stride;
  }

 private:
  static StridedMatrix<const T> matrix(const T* data, const BlasMatrix& m, int64_t rows,
                                       int64_t columns) {
    if (m.flipped) return {data, rows, columns, 1, m.leading};
    return {data, rows, columns, m.leading, 1};
  }
};

/// A factor of a product as a number of C; of unsigned ones the two's complement.
template <class C>
C factor_of(double factor) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<int64_t>(factor));
  else
    return static_cast<C>(factor);
}

/// y = beta c; c may be y. Only a product without a batch has c. Integers wrap around.
template <class T>
void spread_term(const KernelArgs& args, const ProductOperands& p) {
  using C = typename std::conditional_t<std::is_integral_v<T>, std::type_identity<uint64_t>,
                                        std::type_identity<ComputeOf<T>>>::type;
  const T* c = args.in[2].as<T>();
  T* y = args.out[0].as<T>();
  const C beta = factor_of<C>(p.beta);
  if (c == y && p.beta == 1.0) return;
  for (int64_t row = 0; row < p.problem.rows; ++row, y += p.problem.columns) {
    const T* from = c + row * p.c_row_stride;
    if (p.c_column_stride == 1) {
      ORTM_SIMD
      for (int64_t j = 0; j < p.problem.columns; ++j)
        y[j] = stored<T>(static_cast<C>(computed(from[j])) * beta);
    } else {
      for (int64_t j = 0; j < p.problem.columns; ++j)
        y[j] = stored<T>(static_cast<C>(computed(from[j * p.c_column_stride])) * beta);
    }
  }
}

/// body(matrix, first, last) for ranges of the `units` of every matrix that cover all of them, on
/// threads that get at least `grain` multiplications each.
template <class Body>
void for_each_matrix(const KernelArgs& args, const ProductOperands& p, int64_t units, int64_t grain,
                     const Body& body) {
  if (units == 0) return;
  const int64_t each = std::max<int64_t>(1, ceil_div(p.multiplications(), units));
  parallel_ranges(args.context, p.matrices() * units, ceil_div(grain, each),
                  [&](int64_t begin, int64_t end) {
                    while (begin < end) {
                      const int64_t i = begin / units, first = begin % units;
                      const int64_t count = std::min(units - first, end - begin);
                      body(i, first, first + count);
                      begin += count;
                    }
                  });
}

/// Whether a product has so few rows, or a single column, that packing the right factor would take
/// longer.
template <class T>
bool streams(const MatMulProblem& problem) {
  return problem.columns == 1 ||
         StreamedProduct<T>::pays(problem.rows, problem.columns, problem.inner, problem.b.flipped);
}

/// A product that streams().
template <class T>
void multiply_streamed(const KernelArgs& args, const ProductOperands& p) {
  using Product = StreamedProduct<T>;
  const MatMulProblem& problem = p.problem;
  const bool one_column = problem.columns == 1 && problem.rows > 1;
  if (p.beta != 0.0) spread_term<T>(args, p);
  const Product product = one_column ? Product(1, problem.rows, problem.inner)
                                     : Product(problem.rows, problem.columns, problem.inner);
  for_each_matrix(args, p, product.units(), Product::kGrain,
                  [&](int64_t i, int64_t first, int64_t last) {
                    const ProductMatrices<T> m(args, p, i);
                    // A column of the result is a row of the transposed product.
                    const auto left = one_column ? m.b.transposed() : m.a;
                    const auto right = one_column ? m.a.transposed() : m.b;
                    product.run(first, last, left, right, static_cast<ComputeOf<T>>(p.alpha),
                                p.beta != 0.0, m.y);
                  });
}

/// Multiplications worth waking a thread that computes them from the caches.
inline constexpr int64_t kProductGrain = 1 << 22;

/// The products of float32 or float64 in blocks.
template <class C>
void multiply_in_blocks(const KernelArgs& args, const ProductOperands& p) {
  if (p.beta != 0.0) spread_term<C>(args, p);
  const BlockedProduct<C> product(p.problem.rows, p.problem.columns, p.problem.inner);
  for_each_matrix(args, p, product.units(), kProductGrain,
                  [&](int64_t i, int64_t first, int64_t last) {
                    const ProductMatrices<C> m(args, p, i);
                    product.run(first, last, m.a, m.b, static_cast<C>(p.alpha), p.beta != 0.0, m.y);
                  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
