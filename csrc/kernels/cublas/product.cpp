#include "kernels/cublas/product.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

namespace ortmodule::cublas {
namespace {

/// To which addresses are looked at: every storage has this alignment, so it says nothing about
/// where a plan puts it.
constexpr uint32_t kAlignment = kPlannedAlignment;
/// What epilogues demand of a vector and of the auxiliary matrix.
constexpr int64_t kEpilogueAlignment = 16;
/// Kernels of the library count the batch in a dimension of the grid that ends here.
constexpr int64_t kMostBatch = 65535;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(str("[matmul] cuBLASLt must succeed, but found ", cublasLtGetStatusString(status),
                    " from ", call));
}

/// Whether the library says before it launches anything that it does not compute this problem.
/// Which status it uses depends on its version; one after a launch, EXECUTION_FAILED, is no
/// refusal.
bool refuses(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::Float16: return CUDA_R_16F;
    case DType::BFloat16: return CUDA_R_16BF;
    case DType::Float64: return CUDA_R_64F;
    default: return CUDA_R_32F;
  }
}

/// A library object with its destructor.
template <class T, cublasStatus_t (*destroy)(T)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (object_) destroy(object_);
  }
  T* address() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

using MatMulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class T>
void set(const MatMulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

/// A row-major matrix is, to a library that counts by columns, its transpose: the product is asked
/// for as y' = b' a'.
void describe(MatrixLayout& layout, cudaDataType_t type, int64_t rows, int64_t columns,
              const BlasMatrix& matrix, int64_t batch) {
  const auto lead = static_cast<uint64_t>(matrix.flipped ? rows : columns);
  const auto other = static_cast<uint64_t>(matrix.flipped ? columns : rows);
  check(cublasLtMatrixLayoutCreate(layout.address(), type, lead, other, matrix.leading),
        "cublasLtMatrixLayoutCreate");
  if (batch == 1) return;
  const auto count = static_cast<int32_t>(batch);
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute");
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &matrix.batch_stride, sizeof(matrix.batch_stride)),
        "cublasLtMatrixLayoutSetAttribute");
}

cublasComputeType_t compute_type(DType dtype, const KernelContext& context) {
  if (dtype == DType::Float64) return CUBLAS_COMPUTE_64F;
  if (dtype == DType::Float32 && context.allow_tf32) return CUBLAS_COMPUTE_32F_FAST_TF32;
  return CUBLAS_COMPUTE_32F;
}

bool allows_narrow_sums(DType dtype, const KernelContext& context) {
  if (dtype == DType::Float16) return context.allow_float16_reduction;
  return dtype == DType::BFloat16 && context.allow_bfloat16_reduction;
}

uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  return static_cast<uint32_t>(std::min<uintptr_t>(bits & (~bits + 1), kAlignment));
}

/// Of an operand that is not there: as good as the best.
uint32_t alignment_or_best(const void* address) {
  return address ? alignment_of(address) : kAlignment;
}

using Algorithm = std::optional<cublasLtMatmulAlgo_t>;

/// One product with everything described.
class Call {
 public:
  Call(const Problem& problem, const Operands& operands, const KernelArgs& args)
      : problem_(problem), at_(operands), args_(args) {
    const cudaDataType_t type = data_type(problem_.dtype);
    const MatMulProblem& s = problem_.shape;
    const bool wide = problem_.dtype == DType::Float64;
    check(cublasLtMatmulDescCreate(desc_.address(), compute_type(problem_.dtype, args.context),
                                   wide ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, s.b.flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, s.a.flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    describe_epilogue();
    describe(b_, type, s.inner, s.columns, s.b, s.batch);
    describe(a_, type, s.rows, s.inner, s.a, s.batch);
    describe(y_, type, s.rows, s.columns, s.y, s.batch);
    BlasMatrix c = s.y;
    if (problem_.adds) c.leading = std::max(problem_.c_leading, s.columns);
    describe(c_, type, s.rows, s.columns, c, s.batch);
  }

  bool run(double alpha, double beta) {
    for (const void* address : {at_.vector, at_.auxiliary})
      if (alignment_or_best(address) < kEpilogueAlignment) return false;
    const Algorithm algorithm = chosen();
    if (!algorithm) return false;
    return problem_.dtype == DType::Float64
               ? run_with(*algorithm, alpha, beta)
               : run_with(*algorithm, static_cast<float>(alpha), static_cast<float>(beta));
  }

 private:
  using Key = std::tuple<std::tuple<int, DType, cublasComputeType_t, bool>,
                         std::tuple<int64_t, int64_t, int64_t, int64_t>,
                         std::array<std::tuple<int64_t, bool, int64_t>, 3>,
                         std::tuple<cublasLtEpilogue_t, bool, int64_t>, std::array<uint32_t, 6>>;

  struct Known {
    std::mutex mutex;
    std::map<Key, Algorithm> algorithms;
  };
  static Known& known() {
    static Known all;
    return all;
  }

  void describe_epilogue() {
    if (problem_.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
    set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, problem_.epilogue);
    // The heuristics look at the alignment of both addresses.
    if (problem_.reads_or_writes_vector())
      set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at_.vector);
    if (!problem_.has_auxiliary()) return;
    set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at_.auxiliary);
    set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem_.shape.columns);
  }

  template <class Scalar>
  bool run_with(const cublasLtMatmulAlgo_t& algorithm, Scalar alpha, Scalar beta) {
    const cublasStatus_t status =
        cublasLtMatmul(static_cast<cublasLtHandle_t>(args_.context.blas_lt), desc_.get(), &alpha,
                       at_.b, b_.get(), at_.a, a_.get(), &beta, c_address(), c_.get(), at_.y,
                       y_.get(), &algorithm, aligned_workspace(args_.workspace),
                       problem_.workspace_bytes, static_cast<cudaStream_t>(args_.context.stream));
    // The heuristics may name what the call then refuses: an epilogue, or an alignment.
    if (refuses(status)) {
      const std::lock_guard lock(known().mutex);
      known().algorithms[key()] = std::nullopt;
      return false;
    }
    check(status, "cublasLtMatmul");
    return true;
  }

  const void* c_address() const { return problem_.adds ? at_.c : at_.y; }

  Key key() const {
    const MatMulProblem& s = problem_.shape;
    const KernelContext& context = args_.context;
    const auto facts_of = [](const BlasMatrix& m) {
      return std::tuple(m.leading, m.flipped, m.batch_stride);
    };
    return {std::tuple(context.device_index, problem_.dtype, compute_type(problem_.dtype, context),
                       allows_narrow_sums(problem_.dtype, context)),
            std::tuple(s.rows, s.columns, s.inner, s.batch),
            {facts_of(s.a), facts_of(s.b), facts_of(s.y)},
            std::tuple(problem_.epilogue, problem_.adds, problem_.c_leading),
            {alignment_of(at_.a), alignment_of(at_.b), alignment_of(c_address()),
             alignment_of(at_.y), alignment_or_best(at_.vector), alignment_or_best(at_.auxiliary)}};
  }

  /// The one that the heuristics put first, for this problem, these flags and alignments.
  Algorithm chosen() {
    const Key key = this->key();
    {
      const std::lock_guard lock(known().mutex);
      const auto& algorithms = known().algorithms;
      if (const auto found = algorithms.find(key); found != algorithms.end()) return found->second;
    }
    const Algorithm algorithm = heuristic();
    const std::lock_guard lock(known().mutex);
    return known().algorithms.emplace(key, algorithm).first->second;
  }

  Algorithm heuristic() {
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.address()), "cublasLtMatmulPreferenceCreate");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<uint64_t>(problem_.workspace_bytes));
    // The library's first operand is our b.
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(at_.b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(at_.a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c_address()));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(at_.y));
    if (!allows_narrow_sums(problem_.dtype, args_.context))
      set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} |
              uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        static_cast<cublasLtHandle_t>(args_.context.blas_lt), desc_.get(), b_.get(), a_.get(),
        c_.get(), y_.get(), preference.get(), 1, &result, &found);
    if (refuses(status)) return std::nullopt;
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return result.algo;
  }

  const Problem& problem_;
  const Operands& at_;
  const KernelArgs& args_;
  MatMulDesc desc_;
  MatrixLayout a_, b_, c_, y_;
};

bool is_empty(const OperandFacts& operand) { return element_count(operand.layout.sizes) == 0; }

}  // namespace

Problem::Problem(MatMulProblem given, DType type, cublasLtEpilogue_t what)
    : shape(std::move(given)), dtype(type), epilogue(what) {
  const int64_t partial_bytes = shape.batch * shape.rows * shape.columns * kParts *
                                static_cast<int64_t>(std::max(size_of(dtype), sizeof(float)));
  workspace_bytes =
      static_cast<size_t>(std::min(kMostWorkspaceBytes, (partial_bytes + 63) / 64 * 64));
}

bool run_product(const Problem& problem, double alpha, double beta, const Operands& operands,
                 const KernelArgs& args) {
  return Call(problem, operands, args).run(alpha, beta);
}

Reason product_unsupported(const StepFacts& facts) {
  for (size_t i = 0; i < 2; ++i) {
    if (facts.inputs[i].layout.sizes.empty()) return {};  // sizes are not known yet
    if (is_empty(facts.inputs[i])) return "an operand is empty";
  }
  if (!facts.outputs[0].layout.sizes.empty() && matmul_problem(facts).batch > kMostBatch)
    return "the batch is too large";
  return {};
}

Reason bias_unsupported(const MatMulProblem& shape) {
  if (shape.columns == 1) return "the bias has one element";
  if (shape.inner == 1) return "the operands have one column and one row";
  return {};
}

Reason second_result_unsupported(const MatMulProblem& shape, DType dtype) {
  if (shape.rows == 1 || shape.columns == 1 || shape.inner == 1)
    return "a matrix has a single row or column";
  const auto element = static_cast<int64_t>(size_of(dtype));
  for (const BlasMatrix* matrix : {&shape.a, &shape.b, &shape.y})
    if (matrix->leading * element % kEpilogueAlignment != 0)
      return str("rows of ", matrix->leading * element, " bytes are no multiple of ",
                 kEpilogueAlignment);
  return {};
}

}  // namespace ortmodule::cublas
