// One matrix product by cuBLASLt with what its epilogue does besides. Flips and batches are part of
// the layouts, scratch is planned memory. A step describes its problem to the library once. The
// algorithm is the first that the library's heuristics name, looked up once per problem and device;
// it depends on shapes, types, flags and the alignment of addresses alone, so that a product that
// is recomputed has the same bits.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

#include "kernels/library_workspace.h"
#include "kernels/matmul_problem.h"

namespace ortmodule::cublas {

/// Scratch that algorithms may use: room for the partial sums of a few parts of the inner
/// dimension, at most what NVIDIA recommends for the newest devices.
inline constexpr int64_t kMostWorkspaceBytes = int64_t{32} << 20;
inline constexpr int64_t kParts = 8;

/// Everything that an algorithm is chosen by, addresses and flags of the run aside.
struct Problem {
  MatMulProblem shape;
  DType dtype = DType::Undefined;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool adds = false;      // beta * C is added, C being as large as the result
  int64_t c_leading = 0;  // of C, if it is added
  size_t workspace_bytes = 0;

  Problem(MatMulProblem shape, DType dtype, cublasLtEpilogue_t epilogue);

  bool reads_or_writes_vector() const { return (epilogue & kVectorBits) != 0; }
  bool has_auxiliary() const { return (epilogue & kAuxiliaryBit) != 0; }
  /// Scratch to declare: the alignment that the library demands takes its part.
  size_t declared_bytes() const { return declared_workspace_bytes(workspace_bytes); }

 private:
  static constexpr int kVectorBits =
      CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;
  static constexpr int kAuxiliaryBit = 128;
};

/// The addresses of one call. `vector` is the bias, or where its gradient goes; `auxiliary` is laid
/// out as the result.
struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // only if the problem adds
  void* y = nullptr;
  void* vector = nullptr;
  void* auxiliary = nullptr;
};

/// A problem with what the library is told of it, which is made at the first run and goes with the
/// step. Threads may run it at once.
class Product {
 public:
  explicit Product(Problem problem);
  ~Product();

  const Problem& problem() const { return problem_; }

  /// y = alpha * a b + beta * c with the epilogue, on the stream of `args`, whose workspace it
  /// uses; false, with nothing done, if the library has no algorithm or refuses the problem; it is
  /// not asked again. Throws Error if a call fails.
  bool run(double alpha, double beta, const Operands& operands, const KernelArgs& args) const;

 private:
  struct State;
  Problem problem_;
  std::unique_ptr<State> state_;
};

/// One line that names the problem, the way of its sums, the GPU and the library's version, for
/// what is remembered of it.
std::string problem_text(const Problem& problem, const KernelContext& context);

/// Why the library takes no product of these operands; nothing while sizes are not known.
Reason product_unsupported(const StepFacts& facts);

/// Why the library is not asked to add a bias to this product, as torch does not ask it.
Reason bias_unsupported(const MatMulProblem& shape);
/// Why it is not asked to write a second result beside the product: a bias's gradient, or the
/// auxiliary matrix. Gradients were wrong on an H100 where layers had 7, 9, 1 and 33 features, so
/// matrices must have several rows and columns, and rows that start at multiples of 16 bytes.
Reason second_result_unsupported(const MatMulProblem& shape, DType dtype);

}  // namespace ortmodule::cublas
