// What the kernels of recurrent layers share on CUDA: which rows take part in a step, where they
// lie, and the product with the recurrent weights, which ends in the step's own formula.
// Method: one launch per step forward, as a step needs all of the state before it. A block computes
// 8 rows by 32 units with all gates of a unit in one thread, from tiles in shared memory, and in
// the same order whether one step or many run in a launch: gates computed again have the same bits.
#pragma once

#include <type_traits>

#include "kernels/cuda/packed_batch.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/recurrent_shape.h"

namespace ortmodule::cuda {

inline constexpr int kUnits = 32, kRows = 8, kInner = 32;
inline constexpr int kStepThreads = kUnits * kRows;

/// Which rows take part in which steps: StepsShape in device code.
struct DeviceSteps {
  int64_t steps = 0, batch = 0, hidden = 0, state = 0, gates = 0;
  bool reverse = false, wide_lengths = false;
  const void* lengths = nullptr;    // by row; null: all rows take part
  const int64_t* starts = nullptr;  // of a packed batch: the first row of each step

  __device__ bool valid(int64_t step, int64_t row) const {
    if (starts) return row < starts[step + 1] - starts[step];
    if (!lengths) return true;
    return step < (wide_lengths ? static_cast<const int64_t*>(lengths)[row]
                                : static_cast<const int32_t*>(lengths)[row]);
  }
};

/// A tensor [steps, batch, width], [batch, steps, width] or packed; the width is dense.
template <class T>
struct DeviceRows {
  T* data = nullptr;
  const int64_t* starts = nullptr;
  int64_t step_stride = 0, row_stride = 0;

  DeviceRows() = default;
  DeviceRows(const TensorView& x, const StepsShape& s, const int64_t* packed_starts)
      : data(x.as<T>()), starts(packed_starts) {
    if (!x.data) return;
    step_stride = s.packed ? x.strides[0] : x.strides[s.batch_first ? 1 : 0];
    row_stride = s.packed ? x.strides[0] : x.strides[s.batch_first ? 0 : 1];
  }
  __device__ explicit operator bool() const { return data != nullptr; }
  __device__ T* at(int64_t step, int64_t row) const {
    return data + (starts ? starts[step] : step) * step_stride + row * row_stride;
  }
};

/// A matrix [batch, width] of states with dense rows.
template <class T>
struct DeviceStates {
  T* data = nullptr;
  int64_t stride = 0;

  DeviceStates() = default;
  explicit DeviceStates(const TensorView& x) : data(x.as<T>()), stride(x.data ? x.strides[0] : 0) {}
  __device__ T* row(int64_t row) const { return data ? data + row * stride : nullptr; }
};

/// The state before a step, from the saved states; null where that is zero.
template <class T>
__device__ const T* previous_state(const DeviceSteps& s, const DeviceRows<const T>& y,
                                   const DeviceStates<const T>& initial, int64_t step,
                                   int64_t row) {
  const int64_t before = s.reverse ? step + 1 : step - 1;
  if (before < 0 || before >= s.steps || !s.valid(before, row)) return initial.row(row);
  return y.at(before, row);
}

// --- products ------------------------------------------------------------------------------------
/// Left operand: rows of a dense matrix.
template <class C>
struct DenseLeft {
  const C* data;
  int64_t width;
  __device__ C operator()(int64_t row, int64_t k) const { return data[row * width + k]; }
};

/// Left operand: the states before `batch` rows of each of several steps, from step `first` of the
/// order in which the layer runs.
template <class T>
struct PreviousLeft {
  DeviceSteps s;
  DeviceRows<const T> y;
  DeviceStates<const T> initial;
  int64_t first;
  __device__ ComputeOf<T> operator()(int64_t row, int64_t k) const {
    const int64_t i = first + row / s.batch, step = s.reverse ? s.steps - 1 - i : i;
    const int64_t in_batch = row % s.batch;
    if (!s.valid(step, in_batch)) return 0;  // nobody reads the sum
    const T* state = previous_state(s, y, initial, step, in_batch);
    return state ? computed(state[k]) : ComputeOf<T>(0);
  }
};

/// Right operand: element (k, gate, unit) of weights.
template <class T>
struct RightWeights {
  const T* data;
  int64_t inner_stride, gate_stride, unit_stride;
};

struct ProductSizes {
  int64_t rows, units, inner;
};

/// epilogue(row, unit, sums of the kGates gates of that unit).
template <class C, int kGates, class Left, class T, class Epilogue>
__global__ __launch_bounds__(kStepThreads) void step_product_cuda(ProductSizes p,
                                                                  ORTM_GRID_CONSTANT(Left) left,
                                                                  RightWeights<T> right,
                                                                  ORTM_GRID_CONSTANT(Epilogue)
                                                                      epilogue) {
  ORTM_DYNAMIC_SHARED(C, tiles);
  C* const rows = tiles;                      // [kRows][kInner]
  C* const weights = tiles + kRows * kInner;  // [kGates][kUnits][kInner + 1]
  const int thread = static_cast<int>(threadIdx.x), unit = thread % kUnits, line = thread / kUnits;
  const int64_t first_row = int64_t{blockIdx.x} * kRows, first_unit = int64_t{blockIdx.y} * kUnits;
  C sums[kGates] = {};
  for (int64_t begin = 0; begin < p.inner; begin += kInner) {
    {
      const int64_t row = first_row + line, k = begin + unit;
      rows[thread] = row < p.rows && k < p.inner ? left(row, k) : C(0);
    }
    for (int i = thread; i < kGates * kUnits * kInner; i += kStepThreads) {
      const int gate = i / (kUnits * kInner), rest = i % (kUnits * kInner);
      // Neighbouring threads read neighbouring elements.
      const bool along = right.inner_stride == 1;
      const int u = along ? rest / kInner : rest % kUnits;
      const int j = along ? rest % kInner : rest / kUnits;
      const int64_t at = first_unit + u, k = begin + j;
      weights[(gate * kUnits + u) * (kInner + 1) + j] =
          at < p.units && k < p.inner
              ? computed(right.data[gate * right.gate_stride + at * right.unit_stride +
                                    k * right.inner_stride])
              : C(0);
    }
    __syncthreads();
    for (int j = 0; j < kInner; ++j) {
      const C x = rows[line * kInner + j];
      for (int gate = 0; gate < kGates; ++gate)
        sums[gate] += x * weights[(gate * kUnits + unit) * (kInner + 1) + j];
    }
    __syncthreads();
  }
  if (first_row + line < p.rows && first_unit + unit < p.units)
    epilogue(first_row + line, first_unit + unit, sums);
}

template <class C, int kGates, class Left, class T, class Epilogue>
void step_product(const ProductSizes& p, const Left& left, const RightWeights<T>& right,
                  const Epilogue& epilogue, const KernelContext& context) {
  constexpr size_t bytes = (kRows * kInner + kGates * kUnits * (kInner + 1)) * sizeof(C);
  static_assert(bytes <= kSharedBytes);
  ORTM_LAUNCH((step_product_cuda<C, kGates, Left, T, Epilogue>),
              grid_of(blocks_for(p.rows, kRows), blocks_for(p.units, kUnits)), kStepThreads, bytes,
              context, p, left, right, epilogue);
}

// --- elementwise ---------------------------------------------------------------------------------
/// body(row, column) for a matrix [rows, columns].
template <class Body>
__global__ __launch_bounds__(kStepThreads) void for_each_state_cuda(int64_t rows, int64_t columns,
                                                                    ORTM_GRID_CONSTANT(Body) body) {
  const int64_t i = int64_t{blockIdx.x} * kStepThreads + threadIdx.x;
  if (i < rows * columns) body(i / columns, i % columns);
}
template <class Body>
void for_each_state(int64_t rows, int64_t columns, const Body& body, const KernelContext& context) {
  ORTM_LAUNCH(for_each_state_cuda<Body>, grid_of(blocks_for(rows * columns, kStepThreads)),
              kStepThreads, 0, context, rows, columns, body);
}

/// A dense matrix from a tensor's rows; zeros without one.
template <class T>
struct LoadStates {
  DeviceStates<const T> from;
  ComputeOf<T>* to;
  int64_t width;
  __device__ void operator()(int64_t row, int64_t j) const {
    to[row * width + j] = from.data ? computed(from.row(row)[j]) : ComputeOf<T>(0);
  }
};
/// A tensor's rows from a dense matrix.
template <class T>
struct StoreStates {
  const ComputeOf<T>* from;
  DeviceStates<T> to;
  int64_t width;
  __device__ void operator()(int64_t row, int64_t j) const {
    to.row(row)[j] = stored<T>(from[row * width + j]);
  }
};

template <class T>
void load_states(const TensorView& from, int64_t batch, int64_t width, ComputeOf<T>* to,
                 const KernelContext& context) {
  for_each_state(batch, width, LoadStates<T>{DeviceStates<const T>(from), to, width}, context);
}
template <class T>
void store_states(const ComputeOf<T>* from, int64_t batch, int64_t width, const TensorView& to,
                  const KernelContext& context) {
  if (to.data)
    for_each_state(batch, width, StoreStates<T>{from, DeviceStates<T>(to), width}, context);
}

// --- a layer -------------------------------------------------------------------------------------
/// Takes parts of a workspace; without memory it counts bytes.
class StepScratch {
 public:
  explicit StepScratch(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <class C>
  C* take(int64_t count) {
    constexpr size_t line = 256;
    std::byte* at = memory_ ? memory_ + bytes_ : nullptr;
    bytes_ += (static_cast<size_t>(count) * sizeof(C) + line - 1) / line * line;
    return reinterpret_cast<C*>(at);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

/// Sizes, places and scratch of a kernel; the table of a packed batch is filled when it runs.
struct StepsLayer {
  StepsShape s;
  StepScratch scratch;
  int64_t* table;

  StepsLayer(const StepFacts& facts, const BatchOperands& at, void* workspace)
      : s(facts, at), scratch(workspace), table(scratch.take<int64_t>(s.table_elements())) {}

  DeviceSteps on_device(const KernelArgs& args, const BatchOperands& at) const {
    const TensorView lengths = optional_operand(args, at.lengths);
    DeviceSteps d{
        s.steps,      s.batch, s.hidden, s.state, s.gates, s.reverse, lengths.dtype == DType::Int64,
        lengths.data, nullptr};
    if (s.packed) {
      fill_packed_starts(args.in[at.batch_sizes], s.batch,
                         args.facts.inputs[at.sequence].layout.sizes[0], table, args.context);
      d.lengths = nullptr;
      d.starts = table;
    }
    return d;
  }
};

/// Recurrent weights [gates, state] for the product of a state, and for that of gates' gradients.
template <class T>
RightWeights<T> forward_weights(const TensorView& r, int64_t hidden) {
  return {r.as<T>(), 1, hidden * r.strides[0], r.strides[0]};
}
template <class T>
RightWeights<T> backward_weights(const TensorView& r) {
  return {r.as<T>(), r.strides[0], 0, 1};
}

/// The carry of rows that take part gets what the gates' gradient gives the state.
template <class T>
struct AddToCarry {
  DeviceSteps s;
  int64_t step;
  ComputeOf<T>* carry;
  __device__ void operator()(int64_t row, int64_t j, const ComputeOf<T>* sums) const {
    if (s.valid(step, row)) carry[row * s.state + j] += sums[0];
  }
};

/// What the gradients of a step's gates give the state before it: carry += gates R.
template <class T>
void carry_back(const StepsShape& s, const DeviceSteps& d, int64_t step, const ComputeOf<T>* gates,
                const TensorView& r, ComputeOf<T>* carry, const KernelContext& context) {
  step_product<ComputeOf<T>, 1>(
      {s.batch, s.state, s.gates}, DenseLeft<ComputeOf<T>>{gates, s.gates},
      backward_weights<const T>(r), AddToCarry<T>{d, step, carry}, context);
}

/// KernelDef::workspace_bytes of a kernel whose operands are a Layer<T>.
template <template <class> class Layer>
size_t scratch_bytes(const StepFacts& facts) {
  return dispatch_float(facts.inputs[0].dtype,
                        [&]<class T> { return Layer<T>(facts, nullptr).scratch.bytes(); });
}

}  // namespace ortmodule::cuda
