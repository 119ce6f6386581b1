// The contract of a kernel: views, resolved attributes, workspace and context in; nothing else.
// Kernels never allocate, never choose and never see torch (kernels/aten excepted).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/layout.h"
#include "ir/attr.h"
#include "kernels/run_seed.h"

namespace ortmodule {

/// A set of element types as a bit set.
class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> types) {
    for (DType type : types) bits_ |= 1u << static_cast<unsigned>(type);
  }
  constexpr bool contains(DType type) const { return (bits_ >> static_cast<unsigned>(type)) & 1u; }
  friend constexpr DTypeSet operator|(DTypeSet a, DTypeSet b) {
    DTypeSet both;
    both.bits_ = a.bits_ | b.bits_;
    return both;
  }

 private:
  uint32_t bits_ = 0;
};

inline constexpr DTypeSet kFloats{DType::Float32, DType::Float64};
inline constexpr DTypeSet kAllFloats{DType::Float32, DType::Float64, DType::Float16,
                                     DType::BFloat16};
inline constexpr DTypeSet kIntegers{DType::Int64, DType::Int32, DType::Int16, DType::Int8,
                                    DType::UInt8};
inline constexpr DTypeSet kRealTypes = kAllFloats | kIntegers | DTypeSet{DType::Bool};
inline constexpr DTypeSet kWideUnsigned{DType::UInt16, DType::UInt32, DType::UInt64};
inline constexpr DTypeSet kNarrowFloats{DType::Float8E4M3FN, DType::Float8E4M3FNUZ,
                                        DType::Float8E5M2,   DType::Float8E5M2FNUZ,
                                        DType::Float8E8M0,   DType::Float4E2M1};
inline constexpr DTypeSet kNarrowIntegers{DType::Int4, DType::UInt4, DType::Int2, DType::UInt2};
inline constexpr DTypeSet kEveryType = kRealTypes | DTypeSet{DType::Complex64, DType::Complex128};
/// For kernels of sessions that only move elements.
inline constexpr DTypeSet kMovedTypes =
    kEveryType | kWideUnsigned | kNarrowFloats | kNarrowIntegers;

/// A tensor as a kernel sees it. `data` points at element 0 (the offset is already applied).
/// sizes and strides (in elements) belong to the plan. An absent operand has null data and
/// dtype Undefined.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::Undefined;
  int rank = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t element_count() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= sizes[i];
    return count;
  }
  size_t byte_count() const { return static_cast<size_t>(element_count()) * size_of(dtype); }
};

/// Runs body(begin, end) over disjoint ranges that cover [0, count); `grain` is the least number of
/// items worth a thread. The split depends on count, grain and the number of threads only. False
/// if there are no threads.
class ParallelFor {
 public:
  using Body = std::function<void(int64_t begin, int64_t end)>;
  using Run = void (*)(void* pool, int64_t count, int64_t grain, const Body& body);

  ParallelFor() = default;
  ParallelFor(Run run, void* pool) : run_(run), pool_(pool) {}

  explicit operator bool() const { return run_ != nullptr; }
  void operator()(int64_t count, int64_t grain, const Body& body) const {
    run_(pool_, count, grain, body);
  }

 private:
  Run run_ = nullptr;
  void* pool_ = nullptr;
};

struct StepFacts;
struct KernelArgs;
class HostCopies;  // kernels/host_copies.h

/// Sees every call of a kernel, while steps are recorded where no device does that.
class CallLog {
 public:
  virtual ~CallLog() = default;
  /// `args` are as the kernel left them: results that it gave may be exchanged.
  virtual void ran(void (*run)(const KernelArgs&), const KernelArgs& args) = 0;
};

/// Measures what the libraries of kernels labelled inexact allocate while such a step runs.
class LibraryMeter {
 public:
  virtual ~LibraryMeter() = default;
  virtual void start() = 0;
  /// Bytes taken at the peak since `start`, beyond those of the results. More than were declared
  /// are remembered for later plans.
  virtual int64_t stop(const StepFacts& facts, std::span<const Buffer> results,
                       int64_t declared_bytes) = 0;
};

/// Hears what kernels have read, where pages of an operand may go while the step that reads it last
/// still runs.
class ReadProgress {
 public:
  virtual ~ReadProgress() = default;
  /// The kernel does not read these bytes of an operand again. Called by any of its threads.
  virtual void has_read(const void* first, size_t bytes) = 0;
};

/// How a convolution finds its algorithm: by trying all of them, by the library's estimate, or
/// without a search.
enum class ConvolutionSearch : uint8_t { Exhaustive, Heuristic, Default };

/// What a run gives every kernel. Handles belong to torch and to the calling thread.
struct KernelContext {
  ParallelFor parallel_for = {};
  RunSeed seed = {};
  void* stream = nullptr;   // cudaStream_t
  void* blas = nullptr;     // cublasHandle_t
  void* blas_lt = nullptr;  // cublasLtHandle_t
  /// Gives the thread's cudnnHandle_t on the stream, which only convolutions should make; null
  /// where torch.backends.cudnn is off.
  void* (*dnn)() = nullptr;
  int device_index = 0;                 // of the GPU, which is the current device
  bool allow_tf32 = false;              // products of float32 may round their operands to TF32
  bool allow_convolution_tf32 = false;  // convolutions of float32 likewise
  ConvolutionSearch convolution_search = ConvolutionSearch::Heuristic;
  /// Products of 16 bits may be summed in 16 bits across parts of the inner dimension.
  bool allow_float16_reduction = false;
  bool allow_bfloat16_reduction = false;
  bool deterministic = false;  // torch.use_deterministic_algorithms
  /// The newest code compiled at run time that may be used (kernels/cuda/generated_group.h); 0:
  /// none. It stays the same from a forward to the end of its backward pass, so that a value that
  /// is computed again is computed by the same code.
  uint64_t generated_code = 0;
  LibraryMeter* meter = nullptr;
  CallLog* log = nullptr;
  HostCopies* host_copies = nullptr;  // of a run whose plan keeps values on the host
  ReadProgress* progress = nullptr;
};

/// Where an operand of a node inside a step comes from.
struct OperandRef {
  enum class Kind : uint8_t { Absent, Input, Register, Literal };
  Kind kind = Kind::Absent;
  int index = 0;         // Input: position among the step's inputs; Register: producing node's
                         // position in the step (its output 0)
  double literal = 0.0;  // Literal, exact; computed in the op's computation type
};

/// One node of a step with sizes resolved.
struct NodeFacts {
  std::string op;
  Attrs attrs;  // every size expression is a constant
  std::vector<OperandRef> inputs;
  std::vector<DType> input_dtypes;  // Undefined for absent operands
  std::vector<int> outputs;         // position among the step's outputs, -1 if only a register
  std::vector<DType> output_dtypes;
  std::vector<Sizes> output_sizes;
  std::vector<bool> output_used;  // false: nobody reads it, a kernel may leave it unwritten
};

/// A tensor that a step reads or writes, without its address.
struct OperandFacts {
  DType dtype = DType::Undefined;
  Layout layout;
};

/// What a kernel may decide and prepare from. Most steps hold one node; a pointwise group several,
/// in program order, all with one output of the same sizes.
struct StepFacts {
  std::vector<NodeFacts> nodes;
  std::vector<OperandFacts> inputs;  // same order as KernelArgs::in
  std::vector<OperandFacts> outputs;
  /// For kernels with scratch for each thread. The step may run on fewer threads later, and on more
  /// if the kernel does not mind.
  int64_t threads = 1;
  const NodeFacts& node() const { return nodes.front(); }
};

struct KernelArgs {
  const StepFacts& facts;
  std::span<const TensorView> in;
  std::span<const TensorView> out;
  void* workspace = nullptr;       // as many bytes as workspace_bytes() asked for, 64-byte aligned
  const void* prepared = nullptr;  // what prepare() returned
  KernelContext& context;
  /// Of a kernel with `allocates_outputs`: it fills in the memory of every output that is used,
  /// laid out as planned; `out` has no addresses then.
  std::span<Buffer> results = {};
};

/// The least a kernel demands of an operand's layout; the plan inserts a copy otherwise.
/// Matrix: one of the last two dimensions has stride 1 and the other does not overlap it.
/// MemoryFormat: row-major or channels-last.
enum class LayoutRule : uint8_t { Any, InnerContiguous, Matrix, MemoryFormat, Contiguous };

struct KernelDef {
  std::string_view op = {};    // operator name, or "PointwiseGroup"
  std::string_view name = {};  // for plans and errors: "softmax_cpu"
  Device device = Device::CPU;
  DTypeSet dtypes = {};  // types of operand 0 (or output 0 if there is no operand)
  void (*run)(const KernelArgs&) = nullptr;
  /// Why this kernel cannot take this step, or nothing.
  Reason (*unsupported)(const StepFacts&) = nullptr;
  /// Scratch bytes.
  size_t (*workspace_bytes)(const StepFacts&) = nullptr;
  /// Bytes that the kernel's library allocates itself through torch while it runs (at its peak).
  size_t (*library_bytes)(const StepFacts&) = nullptr;
  /// Strides of each output where they are not row-major.
  std::vector<Sizes> (*output_strides)(const StepFacts&) = nullptr;
  /// State computed once per plan and handed to every run.
  std::shared_ptr<const void> (*prepare)(const StepFacts&) = nullptr;
  /// Rule for every operand; `input_rules` overrides by position.
  LayoutRule layout = LayoutRule::Contiguous;
  std::vector<LayoutRule> input_rules = {};
  /// The library allocates the results itself: they are taken over instead of copied.
  bool allocates_outputs = false;
  /// The results are in memory of the host, which the device can copy from and to.
  bool host_outputs = false;
  /// Outputs that nobody reads are left out: they have no memory, `out` no address for them.
  bool leaves_out_unused = false;
  /// An output may take the storage of a dying operand of the same layout and element size.
  bool inplace = false;
  /// With `inplace`: the only operand for which that holds; -1: any.
  int inplace_operand = -1;
  /// The library may allocate more than library_bytes declares: the plan's prediction is labelled.
  bool inexact = false;
  /// Results depend on nothing but the operands' bits (no atomics).
  bool deterministic = true;
  int priority = 0;  // the highest among those that accept wins
};

/// The best kernel for a step. If there is none, null, and `why` lists each candidate's reason.
const KernelDef* select_kernel(std::string_view op, Device device, const StepFacts& facts,
                               std::string* why);
/// All kernels of an op.
std::vector<const KernelDef*> kernels_of(std::string_view op);
std::vector<const KernelDef*> all_kernels();

/// Instruction set of a translation unit of kernels/cpu, compiled once per value of ORTM_ISA.
enum class Isa : uint8_t { Baseline, Avx2, Avx512 };
/// Whether this machine runs code of that instruction set.
bool isa_available(Isa isa);

class KernelRegistrar {
 public:
  explicit KernelRegistrar(KernelDef def);
};

}  // namespace ortmodule

#define ORTM_KERNEL_CONCAT_INNER(a, b) a##b
#define ORTM_KERNEL_CONCAT(a, b) ORTM_KERNEL_CONCAT_INNER(a, b)
#define REGISTER_KERNEL(...)                                    \
  static const ::ortmodule::KernelRegistrar ORTM_KERNEL_CONCAT( \
      kernel_, __LINE__)(::ortmodule::KernelDef __VA_ARGS__)
