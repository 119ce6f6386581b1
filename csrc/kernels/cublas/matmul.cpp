// MatMul, FusedMatMul and Gemm through cuBLASLt: flips and batches are part of the layouts, the
// bias of a Gemm is added in the product's epilogue, scratch is planned memory. The algorithm is
// the first that the library's heuristics name, looked up once per problem and device; it depends
// on shapes, types, flags and the alignment of addresses alone, so that a product that is
// recomputed has the same bits. Where the library names none, ATen's kernel makes the product.
//
// Left out: the epilogues for GELU, since the library's is the tanh form and the models' mostly the
// exact one, and those for bias gradients, which would sum in an order of the library's; both are
// single passes of our pointwise and reduction kernels.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/matmul_problem.h"

namespace ortmodule {
namespace {

/// Scratch that algorithms may use: room for the partial sums of a few parts of the inner
/// dimension, at most what NVIDIA recommends for the newest devices.
constexpr int64_t kMostWorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kParts = 8;
/// What the library demands of its scratch, and what a plan gives.
constexpr size_t kWorkspaceAlignment = 256;
constexpr size_t kPlannedAlignment = 64;
/// To which addresses are looked at: every storage has this alignment, so it says nothing about
/// where a plan puts it.
constexpr uint32_t kAlignment = kPlannedAlignment;
/// What the epilogue demands of a bias, of which the heuristics are told nothing.
constexpr uint32_t kBiasAlignment = 16;
/// Kernels of the library count the batch in a dimension of the grid that ends here.
constexpr int64_t kMostBatch = 65535;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(str("[matmul] cuBLASLt must succeed, but found ", cublasLtGetStatusString(status),
                    " from ", call));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::Float16: return CUDA_R_16F;
    case DType::BFloat16: return CUDA_R_16BF;
    case DType::Float64: return CUDA_R_64F;
    default: return CUDA_R_32F;
  }
}

/// Everything that an algorithm is chosen by.
struct Problem {
  MatMulProblem shape;
  DType dtype = DType::Undefined;
  bool has_bias = false;  // a row that is added to every row of the result
  bool adds = false;      // beta * C is added, C being as large as the result
  int64_t c_leading = 0;
  size_t workspace_bytes = 0;

  explicit Problem(const StepFacts& facts)
      : shape(matmul_problem(facts)), dtype(facts.outputs[0].dtype) {
    if (facts.inputs.size() > 2 && facts.inputs[2].dtype != DType::Undefined) {
      const Layout& c = facts.inputs[2].layout;
      adds = c.sizes.size() == 2 && c.sizes[0] == shape.rows && shape.rows != 1;
      has_bias = !adds;
      c_leading = adds ? c.strides[0] : 0;
    }
    const int64_t partial_bytes = shape.batch * shape.rows * shape.columns * kParts *
                                  static_cast<int64_t>(std::max(size_of(dtype), sizeof(float)));
    workspace_bytes =
        static_cast<size_t>(std::min(kMostWorkspaceBytes, (partial_bytes + 63) / 64 * 64));
  }
};

/// The next kernel of the op that takes the same operands: ATen's.
struct Fallback {
  const KernelDef* kernel = nullptr;
  std::shared_ptr<const void> prepared;

  Fallback(const StepFacts& facts, void (*except)(const KernelArgs&)) {
    for (const KernelDef* other : kernels_of(facts.node().op)) {
      const bool fits = other->device == Device::CUDA && other->run != except &&
                        !other->gives_results && !other->workspace_bytes &&
                        other->layout == LayoutRule::Matrix;
      if (kernel || !fits || (other->unsupported && other->unsupported(facts))) continue;
      kernel = other;
    }
    if (kernel && kernel->prepare) prepared = kernel->prepare(facts);
  }
};

void matmul(const KernelArgs& args);

struct Prepared {
  Problem problem;
  Fallback fallback;
  double alpha = 1.0;
  double beta = 0.0;

  explicit Prepared(const StepFacts& facts) : problem(facts), fallback(facts, matmul) {
    const Attrs& attrs = facts.node().attrs;
    alpha = attrs.number("alpha", 1.0);
    beta = problem.adds ? attrs.number("beta", 1.0) : 0.0;
  }
};

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

void* aligned(void* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  return static_cast<char*>(workspace) + (0 - address) % kWorkspaceAlignment;
}

/// One product with everything described.
class Call {
 public:
  Call(const Prepared& prepared, const KernelArgs& args)
      : problem_(prepared.problem), prepared_(prepared), args_(args) {
    const cudaDataType_t type = data_type(problem_.dtype);
    const MatMulProblem& s = problem_.shape;
    const bool wide = problem_.dtype == DType::Float64;
    check(cublasLtMatmulDescCreate(desc_.address(), compute_type(problem_.dtype, args.context),
                                   wide ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, s.b.flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, s.a.flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (problem_.has_bias) {
      set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, const_cast<const void*>(args.in[2].data));
    }
    describe(b_, type, s.inner, s.columns, s.b, s.batch);
    describe(a_, type, s.rows, s.inner, s.a, s.batch);
    describe(y_, type, s.rows, s.columns, s.y, s.batch);
    BlasMatrix c = s.y;
    if (problem_.adds) c.leading = std::max(problem_.c_leading, s.columns);
    describe(c_, type, s.rows, s.columns, c, s.batch);
  }

  /// Whether the library could make the product.
  bool run(const BlasOffsets& at) {
    if (problem_.has_bias && alignment_of(args_.in[2].data) < kBiasAlignment) return false;
    const char* a = shifted(args_.in[0].data, at.a);
    const char* b = shifted(args_.in[1].data, at.b);
    char* y = shifted(args_.out[0].data, at.y);
    const void* c = problem_.adds ? args_.in[2].data : y;
    const std::optional<cublasLtMatmulAlgo_t> algorithm = chosen(a, b, c, y);
    if (!algorithm) return false;
    const auto run_with = [&](auto alpha, auto beta) {
      check(cublasLtMatmul(static_cast<cublasLtHandle_t>(args_.context.blas_lt), desc_.get(),
                           &alpha, b, b_.get(), a, a_.get(), &beta, c, c_.get(), y, y_.get(),
                           &*algorithm, aligned(args_.workspace), problem_.workspace_bytes,
                           static_cast<cudaStream_t>(args_.context.stream)),
            "cublasLtMatmul");
    };
    if (problem_.dtype == DType::Float64) {
      run_with(prepared_.alpha, prepared_.beta);
    } else {
      run_with(static_cast<float>(prepared_.alpha), static_cast<float>(prepared_.beta));
    }
    return true;
  }

 private:
  template <class T>
  static char* shifted(T* data, int64_t bytes) {
    return static_cast<char*>(data) + bytes;
  }

  /// The one that the heuristics put first, for this problem, these flags and alignments.
  std::optional<cublasLtMatmulAlgo_t> chosen(const void* a, const void* b, const void* c,
                                             const void* y) {
    const MatMulProblem& s = problem_.shape;
    const KernelContext& context = args_.context;
    const auto facts_of = [](const BlasMatrix& m) {
      return std::tuple(m.leading, m.flipped, m.batch_stride);
    };
    const auto key = std::tuple(
        std::tuple(context.device_index, problem_.dtype, compute_type(problem_.dtype, context),
                   allows_narrow_sums(problem_.dtype, context)),
        std::tuple(s.rows, s.columns, s.inner, s.batch), facts_of(s.a), facts_of(s.b),
        facts_of(s.y), std::tuple(problem_.has_bias, problem_.adds, problem_.c_leading),
        std::tuple(alignment_of(a), alignment_of(b), alignment_of(c), alignment_of(y)));
    static std::mutex mutex;
    static std::map<std::decay_t<decltype(key)>, std::optional<cublasLtMatmulAlgo_t>> known;
    {
      const std::lock_guard lock(mutex);
      if (const auto found = known.find(key); found != known.end()) return found->second;
    }
    const std::optional<cublasLtMatmulAlgo_t> algorithm = heuristic(a, b, c, y);
    const std::lock_guard lock(mutex);
    return known.emplace(key, algorithm).first->second;
  }

  std::optional<cublasLtMatmulAlgo_t> heuristic(const void* a, const void* b, const void* c,
                                                const void* y) {
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.address()), "cublasLtMatmulPreferenceCreate");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<uint64_t>(problem_.workspace_bytes));
    // The library's first operand is our b.
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(y));
    if (!allows_narrow_sums(problem_.dtype, args_.context))
      set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} |
              uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        static_cast<cublasLtHandle_t>(args_.context.blas_lt), desc_.get(), b_.get(), a_.get(),
        c_.get(), y_.get(), preference.get(), 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return result.algo;
  }

  const Problem& problem_;
  const Prepared& prepared_;
  const KernelArgs& args_;
  MatMulDesc desc_;
  MatrixLayout a_, b_, c_, y_;
};

void run_fallback(const Prepared& prepared, const KernelArgs& args) {
  const MatMulProblem& s = prepared.problem.shape;
  const KernelDef* kernel = prepared.fallback.kernel;
  ORTM_CHECK(kernel, "[matmul] cuBLASLt must have an algorithm, but found none for ",
             name_of(prepared.problem.dtype), " [", s.rows, ", ", s.inner, "] x [", s.inner, ", ",
             s.columns, "], batch ", s.batch);
  kernel->run({.facts = args.facts,
               .in = args.in,
               .out = args.out,
               .prepared = prepared.fallback.prepared.get(),
               .context = args.context});
}

void matmul(const KernelArgs& args) {
  const auto& prepared = *static_cast<const Prepared*>(args.prepared);
  Call call(prepared, args);
  const auto element = static_cast<int64_t>(size_of(prepared.problem.dtype));
  for (const BlasOffsets& at : prepared.problem.shape.calls)
    if (!call.run({at.a * element, at.b * element, at.y * element}))
      return run_fallback(prepared, args);
}

std::shared_ptr<const void> prepare_matmul(const StepFacts& facts) {
  return std::make_shared<Prepared>(facts);
}

size_t matmul_workspace(const StepFacts& facts) {
  return Problem(facts).workspace_bytes + kWorkspaceAlignment - kPlannedAlignment;
}

bool is_empty(const OperandFacts& operand) { return element_count(operand.layout.sizes) == 0; }

Reason matmul_unsupported(const StepFacts& facts) {
  for (size_t i = 0; i < 2; ++i) {
    if (facts.inputs[i].layout.sizes.empty()) return {};  // sizes are not known yet
    if (is_empty(facts.inputs[i])) return "an operand is empty";
  }
  if (!facts.outputs[0].layout.sizes.empty() && matmul_problem(facts).batch > kMostBatch)
    return "the batch is too large";
  return {};
}

/// C must be a row that is added as it is, or as large as the result and row-major.
Reason gemm_unsupported(const StepFacts& facts) {
  if (Reason reason = matmul_unsupported(facts)) return reason;
  if (facts.inputs.size() < 3 || facts.inputs[2].dtype == DType::Undefined ||
      facts.outputs[0].layout.sizes.empty())
    return {};
  const Layout& c = facts.inputs[2].layout;
  const Sizes& y = facts.outputs[0].layout.sizes;
  if (c.sizes == y && y[0] != 1)
    return is_inner_contiguous(c) && c.strides[0] >= y[1] ? Reason()
                                                          : Reason("the addend is not row-major");
  if (c.sizes.empty() || element_count(c.sizes) != y[1] || c.sizes.back() != y[1])
    return "the addend is neither a row nor of the result's size";
  if (c.sizes.back() != 1 && c.strides.back() != 1) return "the addend is strided";
  if (facts.node().attrs.number("beta", 1.0) != 1.0) return "a bias is not scaled";
  return {};
}

REGISTER_KERNEL({.op = "MatMul",
                 .name = "matmul_cublaslt",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = matmul,
                 .unsupported = matmul_unsupported,
                 .workspace_bytes = matmul_workspace,
                 .prepare = prepare_matmul,
                 .layout = LayoutRule::Matrix});
REGISTER_KERNEL({.op = "FusedMatMul",
                 .name = "fused_matmul_cublaslt",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = matmul,
                 .unsupported = matmul_unsupported,
                 .workspace_bytes = matmul_workspace,
                 .prepare = prepare_matmul,
                 .layout = LayoutRule::Matrix});
REGISTER_KERNEL({.op = "Gemm",
                 .name = "gemm_cublaslt",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = matmul,
                 .unsupported = gemm_unsupported,
                 .workspace_bytes = matmul_workspace,
                 .prepare = prepare_matmul,
                 .layout = LayoutRule::Matrix,
                 .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Any}});

}  // namespace
}  // namespace ortmodule
