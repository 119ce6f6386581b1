// The emulated cuBLASLt: products element by element, summed in float64, with every demand of the
// library that our code must meet as a status of its own.
#include "emulated_library.h"

#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/scalar_math.h"

struct EmulatedMatmulDesc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* vector = nullptr;
  void* auxiliary = nullptr;
  int64_t auxiliary_leading = 0;
};
struct EmulatedMatrixLayout {
  cudaDataType_t type;
  int64_t rows, columns, leading;
  int32_t batch = 1;
  int64_t batch_stride = 0;
};
struct EmulatedPreference {
  cublasLtMatmulAlgo_t asked = {{1, 1, 1, 1}, 0};
};

namespace ortmodule::cublas::emulation {
namespace {

constexpr int kVector =
    CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;
constexpr int kAuxiliary = 128;
constexpr int kGelu = 32;
constexpr uintptr_t kWorkspaceAlignment = 256, kEpilogueAlignment = 16;

std::mutex refusal_mutex;
Refusal refusal_;

bool aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

double load(const void* data, cudaDataType_t type, int64_t at) {
  switch (type) {
    case CUDA_R_64F: return static_cast<const double*>(data)[at];
    case CUDA_R_16F: return to_float(static_cast<const Float16*>(data)[at]);
    case CUDA_R_16BF: return to_float(static_cast<const BFloat16*>(data)[at]);
    default: return static_cast<const float*>(data)[at];
  }
}

void store(void* data, cudaDataType_t type, int64_t at, double value) {
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(data)[at] = value; return;
    case CUDA_R_16F: static_cast<Float16*>(data)[at] = to_float16(narrow); return;
    case CUDA_R_16BF: static_cast<BFloat16*>(data)[at] = to_bfloat16(narrow); return;
    default: static_cast<float*>(data)[at] = narrow; return;
  }
}

/// A factor as it is multiplied: element (i, j) of the matrix or of its transpose.
struct Factor {
  const void* data;
  const EmulatedMatrixLayout& layout;
  bool transposed;

  int64_t rows() const { return transposed ? layout.columns : layout.rows; }
  int64_t columns() const { return transposed ? layout.rows : layout.columns; }
  double at(int64_t batch, int64_t i, int64_t j) const {
    if (transposed) std::swap(i, j);
    return load(data, layout.type, batch * layout.batch_stride + j * layout.leading + i);
  }
  /// All elements of a matrix; `by_columns`: those of a column follow one another.
  std::vector<double> elements(int64_t batch, bool by_columns) const {
    std::vector<double> all;
    all.reserve(static_cast<size_t>(rows() * columns()));
    const int64_t outer = by_columns ? columns() : rows(), inner = by_columns ? rows() : columns();
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i)
        all.push_back(by_columns ? at(batch, i, o) : at(batch, o, i));
    return all;
  }
};

double bent(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

struct Product {
  const EmulatedMatmulDesc& desc;
  Factor a, b;
  const void* c;
  const EmulatedMatrixLayout& layout_c;
  void* d;
  const EmulatedMatrixLayout& layout_d;
  double alpha, beta;

  cublasStatus_t wrong() const {
    const bool sizes = a.rows() == layout_d.rows && b.columns() == layout_d.columns &&
                       a.columns() == b.rows() && layout_c.rows == layout_d.rows &&
                       layout_c.columns == layout_d.columns;
    bool batches = true;
    for (const EmulatedMatrixLayout* layout : {&a.layout, &b.layout, &layout_c})
      batches &= layout->batch == layout_d.batch && layout->type == layout_d.type;
    if (!sizes || !batches) return CUBLAS_STATUS_INVALID_VALUE;
    if ((desc.epilogue & kVector) && (!desc.vector || !aligned(desc.vector, kEpilogueAlignment)))
      return CUBLAS_STATUS_INVALID_VALUE;
    if ((desc.epilogue & kAuxiliary) &&
        (!aligned(desc.auxiliary, kEpilogueAlignment) || desc.auxiliary_leading < layout_d.rows))
      return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
  }

  void run() const {
    const int64_t inner = a.columns();
    for (int64_t batch = 0; batch < layout_d.batch; ++batch) {
      const std::vector<double> rows = a.elements(batch, false), columns = b.elements(batch, true);
      for (int64_t j = 0; j < layout_d.columns; ++j)
        for (int64_t i = 0; i < layout_d.rows; ++i)
          finish(batch, i, j,
                 std::inner_product(rows.begin() + i * inner, rows.begin() + (i + 1) * inner,
                                    columns.begin() + j * inner, 0.0));
      if (desc.epilogue == CUBLASLT_EPILOGUE_BGRADA) store_sums(rows, layout_d.rows);
      if (desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) store_sums(columns, layout_d.columns);
    }
  }

  /// Of each of `count` lines of a factor.
  void store_sums(const std::vector<double>& lines, int64_t count) const {
    for (int64_t i = 0; i < count; ++i)
      store(desc.vector, layout_d.type, i,
            std::accumulate(lines.begin() + i * a.columns(), lines.begin() + (i + 1) * a.columns(),
                            0.0));
  }

  void finish(int64_t batch, int64_t i, int64_t j, double sum) const {
    sum *= alpha;
    if (beta != 0)
      sum +=
          beta * load(c, layout_c.type, batch * layout_c.batch_stride + j * layout_c.leading + i);
    if (desc.epilogue & CUBLASLT_EPILOGUE_BIAS) sum += load(desc.vector, layout_d.type, i);
    if (desc.epilogue & kAuxiliary)
      store(desc.auxiliary, layout_d.type, j * desc.auxiliary_leading + i, sum);
    if (desc.epilogue & kGelu) sum = bent(sum);
    store(d, layout_d.type, batch * layout_d.batch_stride + j * layout_d.leading + i, sum);
  }
};

template <class T>
cublasStatus_t copied(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t created(T** to, T value) {
  *to = new T(std::move(value));
  ++counts().created;
  ++counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t destroyed(T* object) {
  delete object;
  --counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

Counts& counts() {
  static Counts all;
  return all;
}

void refuse(Refusal refusal) {
  const std::lock_guard lock(refusal_mutex);
  refusal_ = std::move(refusal);
}

}  // namespace ortmodule::cublas::emulation

using namespace ortmodule::cublas::emulation;

size_t cublasLtGetVersion() { return 1; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                  : "another status";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return created(desc, EmulatedMatmulDesc{.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroyed(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return copied(desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return copied(desc->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return copied(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return copied(desc->vector, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return copied(desc->auxiliary, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return copied(desc->auxiliary_leading, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  return created(layout, EmulatedMatrixLayout{.type = type,
                                              .rows = static_cast<int64_t>(rows),
                                              .columns = static_cast<int64_t>(columns),
                                              .leading = leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroyed(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
             ? copied(layout->batch, value, bytes)
             : copied(layout->batch_stride, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new EmulatedPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto& [alignments, workspace_bytes] = preference->asked;
  uint32_t schemes = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return copied(workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return copied(schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return copied(alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return copied(alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return copied(alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return copied(alignments[3], value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  ++counts().heuristics;
  *results = {preference->asked, CUBLAS_STATUS_SUCCESS};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t) {
  {
    const std::lock_guard lock(refusal_mutex);
    if (refusal_)
      if (const cublasStatus_t status = refusal_(desc->epilogue); status != CUBLAS_STATUS_SUCCESS)
        return status;
  }
  ++counts().launches;
  counts().last_compute = desc->compute;
  const void* const addresses[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (!aligned(addresses[i], algo->alignments[i])) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!aligned(workspace, kWorkspaceAlignment) || workspace_bytes < algo->workspace_bytes)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  std::memset(workspace, 0x5b, workspace_bytes);  // which shows scratch that others use
  const Product product{*desc,
                        {a, *layout_a, desc->transpose_a == CUBLAS_OP_T},
                        {b, *layout_b, desc->transpose_b == CUBLAS_OP_T},
                        c,
                        *layout_c,
                        d,
                        *layout_d,
                        load(alpha, desc->scale, 0),
                        load(beta, desc->scale, 0)};
  if (const cublasStatus_t status = product.wrong(); status != CUBLAS_STATUS_SUCCESS) return status;
  product.run();
  return CUBLAS_STATUS_SUCCESS;
}
