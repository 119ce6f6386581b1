// SoftmaxCrossEntropyLoss and its gradient as in cpu/softmax_cross_entropy_loss.cpp. A label out of
// range stops the kernel (device_check.cuh) before anything is read at it.
// Method: a row belongs to some lanes of a warp or to a block, which goes over it once with a
// running maximum and sum per thread; where classes lie apart (inner >= 32), a thread has a row of
// its own, so that neighbours read neighbouring elements. Vectors begin at the row's first aligned
// element, since rows of an odd number of classes begin anywhere. Row losses and labels' weights
// are added up in double in two stages in a fixed order (losses of rows lie in the workspace);
// nothing is atomic. Sums of exponentials are kept in the computation type, exp is that of
// exp_in_row(), and the gradient does not rescale probabilities by their sum: results agree with
// the CPU's to rounding.
// Bytes moved: scores once (forward); scores and dscores once (gradient).
#include <limits>

#include "kernels/cuda/device_check.cuh"
#include "kernels/cuda/exp_of_difference.cuh"
#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/softmax_cross_entropy_loss.h"

namespace ortmodule::cuda {
namespace {

constexpr int kRowThreads = 512;
/// Blocks that a multiprocessor shall hold; 0 leaves it to the compiler, which elsewhere spills
/// registers to make room for one more.
template <class T, bool kSmooth>
constexpr int kLeastBlocks = std::is_same_v<T, double> || std::is_same_v<T, Float16> ? 1
                             : std::is_same_v<T, float> || kSmooth                   ? 2
                                                                                     : 0;
constexpr int kSumThreads = 256;
constexpr int64_t kMostParts = 256;     // of the sum over rows
constexpr int64_t kRowsPerPart = 4096;  // at least
constexpr int64_t kApartRows = 32;      // `inner` from which a thread has its own row
/// Vectors that a thread loads before it looks at them. Weights of all classes are looked up by as
/// much code as that of several vectors.
template <class T, bool kSmooth>
constexpr int kLoadsAhead = kSmooth || sizeof(T) == 8 ? 1 : 4;

/// An element of a tensor of any float type.
template <class C>
__device__ __forceinline__ C read_float(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::Float32: return static_cast<C>(static_cast<const float*>(data)[i]);
    case DType::Float64: return static_cast<C>(static_cast<const double*>(data)[i]);
    case DType::Float16: return static_cast<C>(to_float(static_cast<const Float16*>(data)[i]));
    default: return static_cast<C>(to_float(static_cast<const BFloat16*>(data)[i]));
  }
}

/// Labels and weights whatever their type.
struct Targets {
  const void* labels = nullptr;
  const void* weights = nullptr;  // null: all are 1
  DType label_dtype = DType::Int64, weight_dtype = DType::Float32;
  int64_t classes = 0, ignore_index = 0;

  /// The label of a row, or -1 if the row does not count.
  __device__ __forceinline__ int64_t label(int64_t row) const {
    const int64_t label = label_dtype == DType::Int64 ? static_cast<const int64_t*>(labels)[row]
                                                      : static_cast<const int32_t*>(labels)[row];
    if (label == ignore_index) return -1;
    ORTM_DEVICE_CHECK(label >= 0 && label < classes,
                      "labels of SoftmaxCrossEntropyLoss lie in [0, classes) or are ignore_index",
                      "[SoftmaxCrossEntropyLoss] labels must lie in [0, ", classes, ") or be ",
                      ignore_index, ", but found ", label, " at position ", row);
    return label;
  }
  template <class C>
  __device__ __forceinline__ C weight(int64_t c) const {
    return weights ? read_float<C>(weights, weight_dtype, c) : C(1);
  }
};

/// What the kernels over rows have in common.
template <class T>
struct LossRows {
  const T* scores = nullptr;
  Targets targets;
  LossShape shape;
  double smoothing = 0;
  const double* weight_sum = nullptr;  // with smoothing; null: the number of classes
  int lanes = 1;
  bool vectors = false;  // classes are neighbours
};

/// body(i, values) over a thread's part of a row, values one or kVectorCount<T> classes from i on.
template <int kAhead, class T, class Body>
__device__ __forceinline__ void for_each_class(const LossRows<T>& r, const T* row, int lane,
                                               const Body& body) {
  using C = ComputeOf<T>;
  constexpr int kCount = kVectorCount<T>;
  const int64_t classes = r.targets.classes;
  const auto one = [&](int64_t i) {
    const C value[1] = {widened(row[i * r.shape.inner])};
    body(i, value);
  };
  if (!r.vectors) {
    for (int64_t i = lane; i < classes; i += r.lanes) one(i);
    return;
  }
  const int64_t misaligned =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kVectorBytes / sizeof(T));
  int64_t head = misaligned ? kCount - misaligned : 0;
  if (head > classes) head = classes;
  const int64_t vectors_end = head + (classes - head) / kCount * kCount;
  for (int64_t i = lane; i < head; i += r.lanes) one(i);
  const auto vector = [&](int64_t i, const Words<T, kCount>& elements) {
    C values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = widened(elements[k]);
    body(i, values);
  };
  const int64_t step = int64_t{r.lanes} * kCount;
  int64_t i = head + int64_t{lane} * kCount;
  for (; i + (kAhead - 1) * step < vectors_end; i += kAhead * step) {
    Words<T, kCount> elements[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) elements[k] = Words<T, kCount>::load(row + i + k * step);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) vector(i + k * step, elements[k]);
  }
  for (; i < vectors_end; i += step) vector(i, Words<T, kCount>::load(row + i));
  for (int64_t k = vectors_end + lane; k < classes; k += r.lanes) one(k);
}

/// sum of exp(x - max) over the elements seen so far. NaN is left out of the maximum and shows in
/// the sum.
template <class T>
struct RunningSum {
  using C = ComputeOf<T>;
  static constexpr C kLeast = -std::numeric_limits<C>::infinity();
  C max = kLeast, sum = 0;

  template <int kCount>
  __device__ __forceinline__ void add(const C (&x)[kCount]) {
    C most = max;
#pragma unroll
    for (int k = 0; k < kCount; ++k) most = larger_number(most, x[k]);
    if (most == kLeast) {  // nothing but -infinity so far, or NaN
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum += x[k] != x[k] ? x[k] : C(0);
      return;
    }
    if (most != max) sum *= exp_in_row<T>(max - most);
    max = most;
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += exp_in_row<T>(x[k] - most);
  }
  /// Of the whole row, in every thread of it.
  __device__ __forceinline__ double log_sum_exp(int lanes, C* scratch) const {
    const C most = row_reduce(max, MaxOp(), lanes, scratch);
    const C part = max == most ? sum : sum * exp_in_row<T>(max - most);
    const C total = row_reduce(part, AddOp(), lanes, scratch);
    return static_cast<double>(most) + std::log(static_cast<double>(total));
  }
};

template <class T, bool kSmooth>
__global__ __launch_bounds__(kRowThreads, (kLeastBlocks<T, kSmooth>)) void loss_rows_cuda(
    ORTM_GRID_CONSTANT(LossRows<T>) r, ComputeOf<T>* log_sum_exp, double* losses, T* out,
    ComputeOf<T>* wide_out) {
  using C = ComputeOf<T>;
  ORTM_DYNAMIC_SHARED(C, scratch);
  const int lane = static_cast<int>(threadIdx.x) % r.lanes;
  const int64_t row = int64_t{blockIdx.x} * (static_cast<int>(blockDim.x) / r.lanes) +
                      static_cast<int>(threadIdx.x) / r.lanes;
  const bool exists = row < r.shape.rows();
  const T* scores = r.scores + (exists ? r.shape.offset(row) : 0);
  // Early, so that the two loads one after the other are over when the row is.
  const int64_t label = lane == 0 && exists ? r.targets.label(row) : -1;
  const double score =
      label >= 0 ? static_cast<double>(widened(scores[label * r.shape.inner])) : 0.0;
  RunningSum<T> running;
  C weighted = 0;  // sum of w[c] scores[c]
  if (exists)
    for_each_class<kLoadsAhead<T, kSmooth>>(r, scores, lane, [&](int64_t i, const auto& x) {
      running.add(x);
      if constexpr (kSmooth)
        for (const C& value : x)
          weighted += r.targets.template weight<C>(i + (&value - &x[0])) * value;
    });
  const double lse = running.log_sum_exp(r.lanes, scratch);
  if (kSmooth) weighted = row_reduce(weighted, AddOp(), r.lanes, scratch);
  if (lane > 0 || !exists) return;
  if (log_sum_exp) log_sum_exp[row] = static_cast<C>(lse);
  double loss = 0;
  if (label >= 0) {
    loss = label_loss(r.smoothing, r.targets.template weight<double>(label), lse, score);
    if (kSmooth)
      loss += smoothing_loss(r.smoothing, r.targets.classes,
                             r.weight_sum ? *r.weight_sum : static_cast<double>(r.targets.classes),
                             lse, static_cast<double>(weighted));
  }
  if (out)
    out[row] = stored<T>(loss);
  else if (wide_out)
    wide_out[row] = static_cast<C>(loss);
  else
    losses[row] = loss;
}

// --- sums over rows ------------------------------------------------------------------------------
/// Sum of the losses and what the mean divides by.
struct LossTotals {
  double loss, divisor;
};
struct AddTotals {
  __device__ __forceinline__ LossTotals operator()(LossTotals a, LossTotals b) const {
    return {a.loss + b.loss, a.divisor + b.divisor};
  }
};

// Part blockIdx.x of the rows; losses may be absent.
__global__ __launch_bounds__(kSumThreads) void loss_parts_cuda(const double* losses,
                                                               ORTM_GRID_CONSTANT(Targets) targets,
                                                               int64_t rows, int64_t rows_per_part,
                                                               LossTotals* parts) {
  ORTM_DYNAMIC_SHARED(LossTotals, scratch);
  const int64_t begin = blockIdx.x * rows_per_part;
  const int64_t end = begin + rows_per_part < rows ? begin + rows_per_part : rows;
  LossTotals sum{0, 0};
  for (int64_t row = begin + threadIdx.x; row < end; row += kSumThreads) {
    const int64_t label = targets.label(row);
    if (losses) sum.loss += losses[row];
    if (label >= 0) sum.divisor += targets.weight<double>(label);
  }
  sum = block_reduce(sum, AddTotals(), scratch);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// The loss itself, to `out`, or only the divisor, to `divisor`.
template <class T>
__global__ __launch_bounds__(kSumThreads) void loss_total_cuda(const LossTotals* parts, int count,
                                                               bool mean, T* out, double* divisor) {
  ORTM_DYNAMIC_SHARED(LossTotals, scratch);
  LossTotals sum{0, 0};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads)
    sum = AddTotals()(sum, parts[i]);
  sum = block_reduce(sum, AddTotals(), scratch);
  if (threadIdx.x > 0) return;
  if (out) out[0] = stored<T>(mean ? sum.loss / sum.divisor : sum.loss);
  if (divisor) *divisor = sum.divisor;
}

__global__ __launch_bounds__(kSumThreads) void weight_sum_cuda(ORTM_GRID_CONSTANT(Targets) targets,
                                                               double* out) {
  ORTM_DYNAMIC_SHARED(double, scratch);
  double sum = 0;
  for (int64_t c = threadIdx.x; c < targets.classes; c += kSumThreads)
    sum += targets.weight<double>(c);
  sum = block_reduce(sum, AddOp(), scratch);
  if (threadIdx.x == 0) *out = sum;
}

/// The workspace: totals of parts, single numbers, losses of rows.
struct Workspace {
  LossTotals* parts;
  double *weight_sum, *divisor, *losses;
  explicit Workspace(void* memory)
      : parts(static_cast<LossTotals*>(memory)),
        weight_sum(reinterpret_cast<double*>(parts + kMostParts)),
        divisor(weight_sum + 1),
        losses(weight_sum + 2) {}
  static size_t bytes(int64_t rows) {
    return sizeof(LossTotals) * kMostParts + sizeof(double) * static_cast<size_t>(2 + rows);
  }
};

template <class T>
void add_rows(const KernelArgs& args, const Workspace& workspace, const double* losses,
              const Targets& targets, int64_t rows, bool mean, T* out, double* divisor) {
  const int64_t parts = std::clamp<int64_t>(blocks_for(rows, kRowsPerPart), 1, kMostParts);
  constexpr size_t kBytes = sizeof(LossTotals) * kWarp;
  ORTM_LAUNCH(loss_parts_cuda, grid_of(parts), kSumThreads, kBytes, args.context, losses, targets,
              rows, blocks_for(rows, parts), workspace.parts);
  ORTM_LAUNCH(loss_total_cuda<T>, 1, kSumThreads, kBytes, args.context, workspace.parts,
              static_cast<int>(parts), mean, out, divisor);
}

// --- launches ------------------------------------------------------------------------------------
/// The rows of a step whose operands from `scores` on are scores, labels and weights.
template <class T>
LossRows<T> rows_of(const KernelArgs& args, size_t scores, const LossAttrs& attrs,
                    const Workspace& workspace) {
  LossRows<T> r;
  r.shape = LossShape(args.in[scores]);
  r.scores = args.in[scores].template as<T>();
  const TensorView& labels = args.in[scores + 1];
  r.targets.labels = labels.data;
  r.targets.label_dtype = labels.dtype;
  if (args.in.size() > scores + 2 && args.in[scores + 2].data) {
    r.targets.weights = args.in[scores + 2].data;
    r.targets.weight_dtype = args.in[scores + 2].dtype;
  }
  r.targets.classes = r.shape.classes;
  r.targets.ignore_index = attrs.ignore_index;
  r.smoothing = attrs.smoothing;
  r.vectors = r.shape.inner == 1;
  if (attrs.smoothing > 0 && r.targets.weights) {
    r.weight_sum = workspace.weight_sum;
    ORTM_LAUNCH(weight_sum_cuda, 1, kSumThreads, sizeof(double) * kWarp, args.context, r.targets,
                workspace.weight_sum);
  }
  return r;
}

RowGroups groups_for(const LossShape& shape) {
  return row_groups(shape.inner < kApartRows ? shape.classes : 1, 16, kRowThreads);
}

template <class T>
void forward(const KernelArgs& args) {
  using C = ComputeOf<T>;
  const LossAttrs attrs(args.facts.node().attrs);
  const Workspace workspace(args.workspace);
  LossRows<T> r = rows_of<T>(args, 0, attrs, workspace);
  const RowGroups groups = groups_for(r.shape);
  r.lanes = groups.lanes;
  T* out = args.out[0].as<T>();
  C* log_sum_exp = args.out.size() > 1 ? args.out[1].as<C>() : nullptr;
  const int64_t rows = r.shape.rows();
  // The loss head wants losses of rows in the computation type.
  C* wide_out = attrs.none && args.out[0].dtype != args.in[0].dtype ? args.out[0].as<C>() : nullptr;
  const auto launch = [&]<bool kSmooth>() {
    ORTM_LAUNCH((loss_rows_cuda<T, kSmooth>), grid_of(blocks_for(rows, groups.rows())),
                static_cast<unsigned>(groups.threads), sizeof(C) * kWarp, args.context, r,
                log_sum_exp, workspace.losses, attrs.none && !wide_out ? out : nullptr, wide_out);
  };
  if (r.smoothing > 0)
    launch.template operator()<true>();
  else
    launch.template operator()<false>();
  if (!attrs.none)
    add_rows<T>(args, workspace, workspace.losses, r.targets, rows, attrs.mean, out, nullptr);
}

// --- gradient ------------------------------------------------------------------------------------
template <class T>
struct LossGradient {
  LossRows<T> rows;
  const void* dloss = nullptr;
  DType dloss_dtype = DType::Float32;
  bool one_dloss = true;            // for all rows
  const double* divisor = nullptr;  // of the mean
  const ComputeOf<T>* log_sum_exp = nullptr;
  T* dscores = nullptr;
};

template <class T, bool kSmooth>
__global__ __launch_bounds__(kRowThreads, (kLeastBlocks<T, kSmooth>)) void loss_gradient_cuda(
    ORTM_GRID_CONSTANT(LossGradient<T>) g) {
  using C = ComputeOf<T>;
  const LossRows<T>& r = g.rows;
  const int lane = static_cast<int>(threadIdx.x) % r.lanes;
  const int64_t row = int64_t{blockIdx.x} * (static_cast<int>(blockDim.x) / r.lanes) +
                      static_cast<int>(threadIdx.x) / r.lanes;
  if (row >= r.shape.rows()) return;
  const int64_t offset = r.shape.offset(row), label = r.targets.label(row);
  C dloss = 0, label_part = 0, share = 0, factor = 0;
  if (label >= 0) {
    dloss = read_float<C>(g.dloss, g.dloss_dtype, g.one_dloss ? 0 : row);
    if (g.divisor) dloss /= static_cast<C>(*g.divisor);
    const C classes = static_cast<C>(r.targets.classes), smoothing = static_cast<C>(r.smoothing);
    label_part = dloss * (C(1) - smoothing) * r.targets.template weight<C>(label);
    share = dloss * smoothing / classes;
    factor = label_part + share * (r.weight_sum ? static_cast<C>(*r.weight_sum) : classes);
  }
  const C log_sum_exp = g.log_sum_exp[row];
  T* dscores = g.dscores + offset;
  for_each_class<kLoadsAhead<T, kSmooth>>(
      r, r.scores + offset, lane, [&](int64_t i, const auto& x) {
        constexpr int kCount =
            static_cast<int>(std::extent_v<std::remove_reference_t<decltype(x)>>);
        C values[kCount] = {};
        if (label >= 0) {
#pragma unroll
          for (int k = 0; k < kCount; ++k) values[k] = exp_in_row<T>(x[k] - log_sum_exp) * factor;
          if constexpr (kSmooth) {
#pragma unroll
            for (int k = 0; k < kCount; ++k)
              values[k] -= share * r.targets.template weight<C>(i + k);
          }
          if (static_cast<uint64_t>(label - i) < uint64_t{kCount}) {
#pragma unroll
            for (int k = 0; k < kCount; ++k)
              if (i + k == label) values[k] -= label_part;
          }
        }
        if constexpr (kCount == 1) {
          dscores[i * r.shape.inner] = narrowed(values[0], T{});
        } else {
          narrow<T>(values).store(dscores + i);
        }
      });
}

template <class T>
void backward(const KernelArgs& args) {
  const LossAttrs attrs(args.facts.node().attrs);
  const Workspace workspace(args.workspace);
  LossGradient<T> g;
  g.rows = rows_of<T>(args, 1, attrs, workspace);
  const RowGroups groups = groups_for(g.rows.shape);
  g.rows.lanes = groups.lanes;
  g.dloss = args.in[0].data;
  g.dloss_dtype = args.in[0].dtype;
  g.one_dloss = !attrs.none;
  g.log_sum_exp = args.in[4].as<ComputeOf<T>>();
  g.dscores = args.out[0].as<T>();
  const auto misalignment = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16; };
  g.rows.vectors = g.rows.vectors && misalignment(g.rows.scores) == misalignment(g.dscores);
  const int64_t rows = g.rows.shape.rows();
  if (attrs.mean) {
    g.divisor = workspace.divisor;
    add_rows<T>(args, workspace, nullptr, g.rows.targets, rows, true, nullptr, workspace.divisor);
  }
  const auto launch = [&]<bool kSmooth>() {
    ORTM_LAUNCH((loss_gradient_cuda<T, kSmooth>), grid_of(blocks_for(rows, groups.rows())),
                static_cast<unsigned>(groups.threads), 0, args.context, g);
  };
  if (g.rows.smoothing > 0)
    launch.template operator()<true>();
  else
    launch.template operator()<false>();
}

REGISTER_KERNEL({.op = "SoftmaxCrossEntropyLoss",
                 .name = "softmax_cross_entropy_loss_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run =
                     [](const KernelArgs& args) {
                       dispatch_float(args.in[0].dtype, [&]<class T> { forward<T>(args); });
                     },
                 .unsupported = [](const StepFacts& f) { return labels_unsupported(f, 1); },
                 .workspace_bytes =
                     [](const StepFacts& f) {
                       return Workspace::bytes(element_count(f.inputs[1].layout.sizes));
                     }});
REGISTER_KERNEL({.op = "SoftmaxCrossEntropyLossGrad",
                 .name = "softmax_cross_entropy_loss_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run =
                     [](const KernelArgs& args) {
                       dispatch_float(args.in[1].dtype, [&]<class T> { backward<T>(args); });
                     },
                 .unsupported = [](const StepFacts& f) { return labels_unsupported(f, 2); },
                 .workspace_bytes = [](const StepFacts&) { return Workspace::bytes(0); },
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
