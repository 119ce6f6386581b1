// FusedAdam: one pass over parameters, gradients and both moments of up to 64 tensors a launch;
// formula and operands in kernels/adam.h. Bytes moved: p, m, v twice, g once. A first launch raises
// the step counts, which lie on the device: nothing waits for it, and steps can be captured.
#include "kernels/adam.h"
#include "kernels/cuda/tensor_table.cuh"

namespace ortmodule::cuda {
namespace {

enum List { kParam, kGrad, kExpAvg, kExpAvgSq, kStepCount, kLists };
using Table = TensorTable<kLists>;

/// Elements of a thread at a time.
constexpr int kElements = 4;

/// The single numbers on the device; null where there are none.
struct DeviceNumbers {
  const float* lr;
  const float* grad_scale;
  const float* found_inf;

  __device__ bool skip() const { return found_inf && *found_inf != 0; }
};

__global__ void raise_steps(ORTM_GRID_CONSTANT(Table) table, DeviceNumbers numbers) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < table.tensors && !numbers.skip()) *static_cast<float*>(table.data[kStepCount][i]) += 1.0f;
}

/// Count elements of one tensor in registers.
template <bool L2, bool Late, class T, class S, class C, int Count>
__device__ __forceinline__ void update(const AdamCoefficients<C>& c, bool unscale,
                                       T (&param)[Count], T (&grad)[Count], S (&exp_avg)[Count],
                                       S (&exp_avg_sq)[Count]) {
#pragma unroll
  for (int k = 0; k < Count; ++k) {
    C p = computed(param[k]), m = computed(exp_avg[k]), v = computed(exp_avg_sq[k]);
    C g = computed(grad[k]);
    if (unscale) {
      g = g * c.unscale;
      grad[k] = stored<T>(g);
    }
    adam_element<L2, Late>(c, g, p, m, v);
    param[k] = stored<T>(p);
    exp_avg[k] = stored<S>(m);
    exp_avg_sq[k] = stored<S>(v);
  }
}

template <class T, class S, bool L2, bool Late>
__global__ void __launch_bounds__(kTableThreads)
    adam(ORTM_GRID_CONSTANT(Table) table, AdamSettings settings, DeviceNumbers numbers) {
  using C = ComputeOf<T>;
  if (numbers.skip()) return;
  __shared__ AdamCoefficients<C> c;
  const int tensor = table.tensor_of(blockIdx.x);
  if (threadIdx.x == 0) {
    const double lr = numbers.lr ? static_cast<double>(*numbers.lr) : settings.lr;
    const double scale = numbers.grad_scale ? static_cast<double>(*numbers.grad_scale) : 1.0;
    c = adam_coefficients<C>(settings, lr, *static_cast<float*>(table.data[kStepCount][tensor]),
                             scale);
  }
  __syncthreads();
  const int64_t begin =
      static_cast<int64_t>(blockIdx.x - table.first_chunk[tensor]) * kChunkElements;
  const int64_t rest = table.elements[tensor] - begin;
  const int64_t count = rest < kChunkElements ? rest : kChunkElements;
  T* param = static_cast<T*>(table.data[kParam][tensor]) + begin;
  T* grad = static_cast<T*>(table.data[kGrad][tensor]) + begin;
  S* exp_avg = static_cast<S*>(table.data[kExpAvg][tensor]) + begin;
  S* exp_avg_sq = static_cast<S*>(table.data[kExpAvgSq][tensor]) + begin;
  const bool unscale = numbers.grad_scale != nullptr;
  const bool vectors = is_aligned<T, kElements>(param) && is_aligned<T, kElements>(grad) &&
                       is_aligned<S, kElements>(exp_avg) && is_aligned<S, kElements>(exp_avg_sq);
  for (int64_t at = int64_t{kElements} * threadIdx.x; at < count; at += kElements * kTableThreads) {
    const int some = static_cast<int>(count - at < kElements ? count - at : kElements);
    T p[kElements], g[kElements];
    S m[kElements], v[kElements];
    load_some(p, param + at, some, vectors);
    load_some(g, grad + at, some, vectors);
    load_some(m, exp_avg + at, some, vectors);
    load_some(v, exp_avg_sq + at, some, vectors);
    update<L2, Late>(c, unscale, p, g, m, v);
    store_some(param + at, p, some, vectors);
    if (unscale) store_some(grad + at, g, some, vectors);
    store_some(exp_avg + at, m, some, vectors);
    store_some(exp_avg_sq + at, v, some, vectors);
  }
}

template <class T, class S>
void step(const Table& table, const AdamSettings& settings, const DeviceNumbers& numbers,
          const KernelContext& context) {
  ORTM_LAUNCH(raise_steps, 1, Table::kTensors, 0, context, table, numbers);
  const dim3 grid = grid_of(table.first_chunk[table.tensors]);
  if (settings.mode == AdamMode::Transformers)
    ORTM_LAUNCH((adam<T, S, false, true>), grid, kTableThreads, 0, context, table, settings,
                numbers);
  else if (settings.mode == AdamMode::L2 && settings.weight_decay != 0)
    ORTM_LAUNCH((adam<T, S, true, false>), grid, kTableThreads, 0, context, table, settings,
                numbers);
  else
    ORTM_LAUNCH((adam<T, S, false, false>), grid, kTableThreads, 0, context, table, settings,
                numbers);
}

void run_adam(const KernelArgs& args) {
  const AdamOperands in{args.in};
  if (in.count() == 0) return;
  const AdamSettings settings = adam_settings(args.facts.node().attrs);
  const DeviceNumbers numbers{in.lr(), in.grad_scale(), in.found_inf()};
  for_each_table<kLists>(
      in.count(), [&](size_t i) { return in.param(i).sizes[0]; },
      [&](int list, size_t i) { return in.in[5 * i + static_cast<size_t>(list)].data; },
      [&](const Table& table) {
        dispatch_float(in.param(0).dtype, [&]<class T> {
          if (in.exp_avg(0).dtype == in.param(0).dtype)
            step<T, T>(table, settings, numbers, args.context);
          else
            step<T, ComputeOf<T>>(table, settings, numbers, args.context);
        });
      });
}

REGISTER_KERNEL({.op = "FusedAdam",
                 .name = "fused_adam_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_adam,
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
