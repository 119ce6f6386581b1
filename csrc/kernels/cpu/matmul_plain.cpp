// MatMul, FusedMatMul and Gemm of every type but complex numbers, for programs without torch: few
// rows stream the right factor, 16 bits are widened while they are packed and rounded once, and
// integers wrap around. Products of 16 bits run here with torch, too, where its library (oneDNN)
// has no code for the processor: its substitute reaches 1 to 11 GFLOP/s where float32 reaches 40.
#include "kernels/cpu/matmul_operands.h"
#include "kernels/cpu/tiled_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// --- 16 bits -------------------------------------------------------------------------------------
template <class T>
void multiply_widened(const KernelArgs& args, const ProductOperands& p) {
  const MatMulProblem& problem = p.problem;
  const TiledProduct<float> product(problem.rows, problem.columns, problem.inner);
  const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const T* c = p.beta != 0.0 ? args.in[2].as<T>() : nullptr;
  const auto multiply = [&](int64_t i, int64_t begin, int64_t end) {
    const ProductMatrices<T> m(args, p, i);
    const auto left = [&](int64_t row, int64_t rows, int64_t first, int64_t inner, float* to) {
      pack_left_rows(
          StridedMatrix<const T>{m.a.data + row * m.a.row_stride + first * m.a.column_stride, rows,
                                 inner, m.a.row_stride, m.a.column_stride},
          to);
    };
    const auto right = [&](int64_t first, int64_t inner, int64_t column, int64_t width, float* to) {
      pack_panels<float>(
          StridedMatrix<const T>{m.b.data + first * m.b.row_stride + column * m.b.column_stride,
                                 inner, width, m.b.row_stride, m.b.column_stride},
          to);
    };
    const auto store = [&](int64_t row, int64_t rows, int64_t column, int64_t width, float* sums,
                           int64_t stride) {
      for (int64_t r = 0; r < rows; ++r, sums += stride) {
        const T* term = c ? c + (row + r) * p.c_row_stride + column * p.c_column_stride : nullptr;
        for (int64_t j = 0; j < width; ++j)
          sums[j] = alpha * sums[j] + (c ? beta * to_float(term[j * p.c_column_stride]) : 0.0f);
        store_row(m.y + (row + r) * problem.columns + column, sums, width);
      }
    };
    product.run(begin, end, left, right, store);
  };
  for_each_matrix(args, p, product.units(), kProductGrain, multiply);
}

// --- integers ------------------------------------------------------------------------------------
/// Results are right modulo a power of two, so sums may be of any unsigned type that is as wide.
template <class T>
using SumOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

/// Rows and columns that are computed together.
constexpr int64_t kIntegerRows = 4, kIntegerColumns = 256;

/// The sum of the products of dense or strided elements.
template <class T>
SumOf<T> integer_dot(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t count) {
  using S = SumOf<T>;
  S sum = 0;
  if (a_step == 1 && b_step == 1) {
    for (int64_t k = 0; k < count; ++k) sum += static_cast<S>(a[k]) * static_cast<S>(b[k]);
  } else {
    for (int64_t k = 0; k < count; ++k)
      sum += static_cast<S>(a[k * a_step]) * static_cast<S>(b[k * b_step]);
  }
  return sum;
}

/// sums [rows, columns] = the product of a block of the matrices.
template <class T>
void multiply_integers(const StridedMatrix<const T>& a, const StridedMatrix<const T>& b,
                       SumOf<T>* sums) {
  using S = SumOf<T>;
  std::fill_n(sums, kIntegerRows * kIntegerColumns, S(0));
  for (int64_t i = 0; i < a.rows; ++i) {
    const T* left = a.data + i * a.row_stride;
    S* row = sums + i * kIntegerColumns;
    if (b.column_stride == 1) {
      for (int64_t k = 0; k < a.columns; ++k) {
        const S factor = static_cast<S>(left[k * a.column_stride]);
        const T* right = b.data + k * b.row_stride;
        ORTM_SIMD
        for (int64_t j = 0; j < b.columns; ++j) row[j] += factor * static_cast<S>(right[j]);
      }
    } else {
      for (int64_t j = 0; j < b.columns; ++j)
        row[j] = integer_dot(left, a.column_stride, b.data + j * b.column_stride, b.row_stride,
                             a.columns);
    }
  }
}

template <class T>
void multiply_as_integers(const KernelArgs& args, const ProductOperands& p) {
  using S = SumOf<T>;
  const MatMulProblem& problem = p.problem;
  const S alpha = factor_of<S>(p.alpha);
  if (p.beta != 0.0) spread_term<T>(args, p);
  const int64_t tiles = ceil_div(problem.rows, kIntegerRows);
  const int64_t units = tiles * ceil_div(problem.columns, kIntegerColumns);
  constexpr int64_t kGrain = 1 << 17;
  for_each_matrix(args, p, units, kGrain, [&](int64_t i, int64_t begin, int64_t end) {
    const ProductMatrices<T> m(args, p, i);
    S sums[kIntegerRows * kIntegerColumns];
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit % tiles * kIntegerRows, column = unit / tiles * kIntegerColumns;
      const int64_t rows = std::min(kIntegerRows, problem.rows - row);
      const int64_t columns = std::min(kIntegerColumns, problem.columns - column);
      multiply_integers<T>(m.a.row_range(row, rows),
                           {m.b.data + column * m.b.column_stride, problem.inner, columns,
                            m.b.row_stride, m.b.column_stride},
                           sums);
      for (int64_t r = 0; r < rows; ++r) {
        T* y = m.y + (row + r) * problem.columns + column;
        for (int64_t j = 0; j < columns; ++j) {
          const S term = p.beta != 0.0 ? static_cast<S>(y[j]) : S(0);
          y[j] = static_cast<T>(term + alpha * sums[r * kIntegerColumns + j]);
        }
      }
    }
  });
}

// --- the kernel ----------------------------------------------------------------------------------
template <class T>
void multiply(const KernelArgs& args, const ProductOperands& p) {
  if (p.problem.inner == 0 && p.beta != 0.0) {
    spread_term<T>(args, p);
  } else if (p.problem.inner == 0) {
    std::fill_n(args.out[0].as<T>(), args.out[0].element_count(), T{});
  } else if constexpr (std::is_integral_v<T>) {
    multiply_as_integers<T>(args, p);
  } else if (streams<T>(p.problem)) {
    multiply_streamed<T>(args, p);
  } else if constexpr (kIsHalf<T>) {
    multiply_widened<T>(args, p);
  } else {
    multiply_in_blocks<T>(args, p);
  }
}

void run(const KernelArgs& args) {
  const auto& p = *static_cast<const ProductOperands*>(args.prepared);
  dispatch_real(args.in[0].dtype, [&]<class T> { multiply<T>(args, p); });
}

/// Whether oneDNN computes in that type: bfloat16 with AVX-512 (by vdpbf16ps or AMX where there are
/// such, else by widening), float16 with AVX-512 FP16.
bool library_computes(DType dtype) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (dtype == DType::Float16) return __builtin_cpu_supports("avx512fp16");
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  static_cast<void>(dtype);
  return true;
#endif
}

Reason library_is_faster(const StepFacts& facts) {
  if (kVectorBytes < 32) return "the library has longer vectors";
  const MatMulProblem problem = matmul_problem(facts);
  // Below, a call of the library costs less than it computes.
  constexpr int64_t kTiny = 4096;
  if (problem.rows * problem.columns * problem.inner <= kTiny) return "the product is tiny";
  if (library_computes(facts.inputs[0].dtype)) return "torch's library computes in 16 bits";
  return {};
}

KernelDef plain_kernel(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = kAllFloats | kIntegers,
          .run = run,
          .prepare = prepare_product,
          .layout = LayoutRule::Matrix,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any},
          .priority = -1};
}

/// The same for 16 bits, before torch's.
KernelDef half_kernel(std::string_view op, std::string_view name) {
  KernelDef kernel = plain_kernel(op, name);
  kernel.dtypes = {DType::Float16, DType::BFloat16};
  kernel.unsupported = library_is_faster;
  kernel.priority = 2;
  return kernel;
}

REGISTER_CPU_KERNEL((half_kernel("MatMul", "matmul_half_cpu")));
REGISTER_CPU_KERNEL((half_kernel("FusedMatMul", "fused_matmul_half_cpu")));
REGISTER_CPU_KERNEL((half_kernel("Gemm", "gemm_half_cpu")));
REGISTER_CPU_KERNEL((plain_kernel("MatMul", "matmul_plain_cpu")));
REGISTER_CPU_KERNEL((plain_kernel("FusedMatMul", "fused_matmul_plain_cpu")));
REGISTER_CPU_KERNEL((plain_kernel("Gemm", "gemm_plain_cpu")));

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
