// MatMul, FusedMatMul and Gemm of float32 and float64 by our own product: where torch's library is
// no faster, and where the product is so small that its dispatch and threads would take longer.
#include <algorithm>
#include <memory>

#include "kernels/cpu/blocked_product.h"
#include "kernels/matmul_problem.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Prepared {
  MatMulProblem problem;
  double alpha = 1.0;
  double beta = 0.0;  // of operand 2, broadcast by its strides; 0 without one
  int64_t c_row_stride = 0, c_column_stride = 0;

  explicit Prepared(const StepFacts& facts);

  int64_t matrices() const { return problem.batch * static_cast<int64_t>(problem.calls.size()); }
  template <class C>
  BlockedProduct<C> product() const {
    return {problem.rows, problem.columns, problem.inner};
  }
};

Prepared::Prepared(const StepFacts& facts) : problem(matmul_problem(facts)) {
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

/// MKL takes its fastest code on processors of Intel only.
bool library_is_slower() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

Reason unsupported(const StepFacts& facts) {
  if (kVectorBytes < 32) return "the library has longer vectors";
  const MatMulProblem problem = matmul_problem(facts);
  const int64_t multiplications = problem.rows * problem.columns * problem.inner;
  if (multiplications == 0) return "nothing is multiplied";
  // MKL wakes other threads for more than this only; below, toy models keep the bits of eager.
  constexpr int64_t kTiny = 4096;
  if (multiplications <= kTiny) return "the product is tiny";
  // The right factor is packed, which so few rows do not pay.
  if (problem.rows < 4) return "the left factor has few rows";
  constexpr int64_t kSmall = int64_t{1} << 21;  // 30 us of one core; torch's dispatch takes 2 us
  static const bool is_faster = library_is_slower();
  if (multiplications > kSmall && !is_faster) return "torch's library is as fast";
  return {};
}

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<const Prepared>(facts);
}

/// y = beta c; c may be y.
template <class C>
void spread(const Prepared& p, const C* c, C* y) {
  const auto beta = static_cast<C>(p.beta);
  if (c == y && p.beta == 1.0) return;
  for (int64_t row = 0; row < p.problem.rows; ++row, y += p.problem.columns) {
    const C* from = c + row * p.c_row_stride;
    if (p.c_column_stride == 1) {
      ORTM_SIMD
      for (int64_t j = 0; j < p.problem.columns; ++j) y[j] = from[j] * beta;
    } else {
      for (int64_t j = 0; j < p.problem.columns; ++j) y[j] = from[j * p.c_column_stride] * beta;
    }
  }
}

template <class C>
class Multiplication {
 public:
  Multiplication(const KernelArgs& args, const Prepared& p)
      : args_(args), p_(p), product_(p.product<C>()) {}

  void run() const {
    if (p_.beta != 0.0) spread(p_, args_.in[2].as<C>(), args_.out[0].as<C>());
    constexpr int64_t kGrain = 1 << 22;  // multiplications worth waking a thread
    const MatMulProblem& problem = p_.problem;
    const int64_t each = problem.rows * problem.columns * problem.inner;
    const int64_t grain = ceil_div(kGrain, ceil_div(each, product_.units()));
    parallel_ranges(args_.context, p_.matrices() * product_.units(), grain,
                    [&](int64_t begin, int64_t end) { run_units(begin, end); });
  }

 private:
  void run_units(int64_t begin, int64_t end) const {
    const int64_t units = product_.units();
    while (begin < end) {
      const int64_t i = begin / units, first = begin % units;
      const int64_t count = std::min(units - first, end - begin);
      multiply(i, first, first + count);
      begin += count;
    }
  }

  /// Units [first, last) of matrix i.
  void multiply(int64_t i, int64_t first, int64_t last) const {
    const MatMulProblem& problem = p_.problem;
    const BlasOffsets& call = problem.calls[static_cast<size_t>(i / problem.batch)];
    const int64_t at = i % problem.batch;
    const auto a =
        matrix(0, problem.a, problem.rows, problem.inner, call.a + at * problem.a.batch_stride);
    const auto b =
        matrix(1, problem.b, problem.inner, problem.columns, call.b + at * problem.b.batch_stride);
    C* y = args_.out[0].as<C>() + call.y + at * problem.y.batch_stride;
    product_.run(first, last, a, b, static_cast<C>(p_.alpha), p_.beta != 0.0, y);
  }

  StridedMatrix<const C> matrix(size_t operand, const BlasMatrix& m, int64_t rows, int64_t columns,
                                int64_t offset) const {
    const C* data = args_.in[operand].as<C>() + offset;
    if (m.flipped) return {data, rows, columns, 1, m.leading};
    return {data, rows, columns, m.leading, 1};
  }

  const KernelArgs& args_;
  const Prepared& p_;
  BlockedProduct<C> product_;
};

void run(const KernelArgs& args) {
  const auto& p = *static_cast<const Prepared*>(args.prepared);
  if (args.in[0].dtype == DType::Float64)
    Multiplication<double>(args, p).run();
  else
    Multiplication<float>(args, p).run();
}

KernelDef matmul_kernel(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = kFloats,
          .run = run,
          .unsupported = unsupported,
          .prepare = prepare,
          .layout = LayoutRule::Matrix,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any},
          .priority = 2};
}

REGISTER_CPU_KERNEL((matmul_kernel("MatMul", "matmul_cpu")));
REGISTER_CPU_KERNEL((matmul_kernel("FusedMatMul", "fused_matmul_cpu")));
REGISTER_CPU_KERNEL((matmul_kernel("Gemm", "gemm_cpu")));

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
