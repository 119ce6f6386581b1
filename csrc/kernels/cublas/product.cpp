#include "kernels/cublas/product.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/gpu_runtime.h"

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

/// What a choice depends on besides the problem: flags of the run and alignments of addresses.
struct Circumstances {
  int device = 0;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  bool narrow_sums = false;
  std::array<uint32_t, 6> alignments = {};  // of a, b, c, y, vector, auxiliary

  auto operator<=>(const Circumstances&) const = default;
};

Circumstances circumstances_of(const Problem& problem, const Operands& at,
                               const KernelContext& context) {
  return {context.device_index,
          compute_type(problem.dtype, context),
          allows_narrow_sums(problem.dtype, context),
          {alignment_of(at.a), alignment_of(at.b), alignment_of(problem.adds ? at.c : at.y),
           alignment_of(at.y), alignment_or_best(at.vector), alignment_or_best(at.auxiliary)}};
}

/// The descriptors of a problem whose sums are made in one way.
class Description {
 public:
  Description(const Problem& problem, cublasComputeType_t compute) {
    const cudaDataType_t type = data_type(problem.dtype);
    const MatMulProblem& s = problem.shape;
    const bool wide = problem.dtype == DType::Float64;
    check(cublasLtMatmulDescCreate(desc_.address(), compute, wide ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, s.b.flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, s.a.flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
      set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, problem.epilogue);
    if (problem.has_auxiliary())
      set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.shape.columns);
    describe(b_, type, s.inner, s.columns, s.b, s.batch);
    describe(a_, type, s.rows, s.inner, s.a, s.batch);
    describe(y_, type, s.rows, s.columns, s.y, s.batch);
    BlasMatrix c = s.y;
    if (problem.adds) c.leading = std::max(problem.c_leading, s.columns);
    describe(c_, type, s.rows, s.columns, c, s.batch);
  }

  /// The addresses that are part of the description; the heuristics look at their alignment.
  void point_to(const Problem& problem, const Operands& at) const {
    if (problem.reads_or_writes_vector()) set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.vector);
    if (problem.has_auxiliary())
      set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at.auxiliary);
  }

  template <class Scalar>
  cublasStatus_t launch(const Problem& problem, const Operands& at, const KernelArgs& args,
                        const cublasLtMatmulAlgo_t& algorithm, Scalar alpha, Scalar beta) const {
    return cublasLtMatmul(static_cast<cublasLtHandle_t>(args.context.blas_lt), desc_.get(), &alpha,
                          at.b, b_.get(), at.a, a_.get(), &beta, problem.adds ? at.c : at.y,
                          c_.get(), at.y, y_.get(), &algorithm, aligned_workspace(args.workspace),
                          problem.workspace_bytes, static_cast<cudaStream_t>(args.context.stream));
  }

  /// The algorithm that the heuristics put first.
  Algorithm heuristic(const Problem& problem, const Circumstances& now, void* handle) const {
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.address()), "cublasLtMatmulPreferenceCreate");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<uint64_t>(problem.workspace_bytes));
    // The library's first operand is our b.
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, now.alignments[1]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, now.alignments[0]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, now.alignments[2]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, now.alignments[3]);
    if (!now.narrow_sums)
      set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} |
              uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        static_cast<cublasLtHandle_t>(handle), desc_.get(), b_.get(), a_.get(), c_.get(), y_.get(),
        preference.get(), 1, &result, &found);
    if (refuses(status)) return std::nullopt;
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return result.algo;
  }

 private:
  MatMulDesc desc_;
  MatrixLayout a_, b_, c_, y_;
};

/// The choices of this process: equal problems have one algorithm, whichever step has them.
class KnownAlgorithms {
 public:
  static KnownAlgorithms& all() {
    static KnownAlgorithms known;
    return known;
  }

  template <class Find>
  Algorithm find_or(const Problem& problem, const Circumstances& now, const Find& find) {
    const Key key = key_of(problem, now);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = algorithms_.find(key); found != algorithms_.end())
        return found->second;
    }
    const Algorithm algorithm = find();
    const std::lock_guard lock(mutex_);
    return algorithms_.emplace(key, algorithm).first->second;
  }

  /// It was named, but does not run.
  void forget(const Problem& problem, const Circumstances& now) {
    const std::lock_guard lock(mutex_);
    algorithms_[key_of(problem, now)] = std::nullopt;
  }

 private:
  using Key = std::tuple<Circumstances, DType, std::tuple<int64_t, int64_t, int64_t, int64_t>,
                         std::array<std::tuple<int64_t, bool, int64_t>, 3>,
                         std::tuple<cublasLtEpilogue_t, bool, int64_t>>;

  static Key key_of(const Problem& problem, const Circumstances& now) {
    const MatMulProblem& s = problem.shape;
    const auto facts_of = [](const BlasMatrix& m) {
      return std::tuple(m.leading, m.flipped, m.batch_stride);
    };
    return {now,
            problem.dtype,
            std::tuple(s.rows, s.columns, s.inner, s.batch),
            {facts_of(s.a), facts_of(s.b), facts_of(s.y)},
            std::tuple(problem.epilogue, problem.adds, problem.c_leading)};
  }

  std::mutex mutex_;
  std::map<Key, Algorithm> algorithms_;
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

/// What one step has asked so far. A run has all of it until its product is launched: addresses are
/// written into a description that all runs share.
struct Product::State {
  std::mutex mutex;
  std::map<cublasComputeType_t, Description> descriptions;
  std::vector<std::pair<Circumstances, Algorithm>> algorithms;

  const Description& description(const Problem& problem, cublasComputeType_t compute) {
    return descriptions.try_emplace(compute, problem, compute).first->second;
  }

  /// Those of a step are few: planned memory has one alignment.
  Algorithm& algorithm(const Problem& problem, const Circumstances& now,
                       const Description& description, void* handle) {
    for (auto& [known, algorithm] : algorithms)
      if (known == now) return algorithm;
    return algorithms
        .emplace_back(
            now, KnownAlgorithms::all().find_or(
                     problem, now, [&] { return description.heuristic(problem, now, handle); }))
        .second;
  }
};

Product::Product(Problem problem)
    : problem_(std::move(problem)), state_(std::make_unique<State>()) {}
Product::~Product() = default;

bool Product::run(double alpha, double beta, const Operands& operands,
                  const KernelArgs& args) const {
  for (const void* address : {operands.vector, operands.auxiliary})
    if (alignment_or_best(address) < kEpilogueAlignment) return false;
  const Circumstances now = circumstances_of(problem_, operands, args.context);
  const std::lock_guard lock(state_->mutex);
  const Description& description = state_->description(problem_, now.compute);
  description.point_to(problem_, operands);
  Algorithm& algorithm = state_->algorithm(problem_, now, description, args.context.blas_lt);
  if (!algorithm) return false;
  const cublasStatus_t status =
      problem_.dtype == DType::Float64
          ? description.launch(problem_, operands, args, *algorithm, alpha, beta)
          : description.launch(problem_, operands, args, *algorithm, static_cast<float>(alpha),
                               static_cast<float>(beta));
  // The heuristics may name what the call then refuses: an epilogue, or an alignment.
  if (refuses(status)) {
    algorithm = std::nullopt;
    KnownAlgorithms::all().forget(problem_, now);
    return false;
  }
  check(status, "cublasLtMatmul");
  return true;
}

std::string problem_text(const Problem& problem, const KernelContext& context) {
  const MatMulProblem& s = problem.shape;
  const auto text_of = [](const BlasMatrix& m) {
    return str(m.leading, m.flipped ? "t" : "n", m.batch_stride);
  };
  return str(gpu_name(context.device_index), ", cuBLASLt ", cublasLtGetVersion(), ", ",
             name_of(problem.dtype), " ", s.rows, "x", s.inner, "x", s.columns, " batch ", s.batch,
             " layouts ", text_of(s.a), " ", text_of(s.b), " ", text_of(s.y), " epilogue ",
             static_cast<int>(problem.epilogue), " sums ",
             static_cast<int>(compute_type(problem.dtype, context)),
             allows_narrow_sums(problem.dtype, context) ? " narrow" : "");
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
