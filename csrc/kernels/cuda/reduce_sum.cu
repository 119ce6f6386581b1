// ReduceSum and ReduceMean (reduce_axes.cuh). Integers wrap around in int64.
#include "kernels/cuda/reduce_axes.cuh"

namespace ortmodule::cuda {
namespace {

template <class T>
struct Sum {
  using C = typename ReduceCompute<T>::type;
  using Partial = std::conditional_t<std::is_floating_point_v<C>, double, int64_t>;
  static ORTM_HD Partial start() { return 0; }
  template <class V>
  static ORTM_HD V sum(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  static ORTM_HD C add(C a, C b) { return sum(a, b); }
  static ORTM_HD Partial combine(Partial a, Partial b) { return sum(a, b); }
};

ORTM_REGISTER_IN_ORDER("ReduceSum", "reduce_sum", Sum);
ORTM_REGISTER_IN_ORDER("ReduceMean", "reduce_mean", Sum);
ORTM_REGISTER_ROW_MAJOR("ReduceSum", "reduce_sum", Sum);
ORTM_REGISTER_ROW_MAJOR("ReduceMean", "reduce_mean", Sum);

}  // namespace
}  // namespace ortmodule::cuda
