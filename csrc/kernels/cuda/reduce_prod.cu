// ReduceProd (reduce_axes.cuh). Floats are multiplied in double, integers wrap around in int64.
#include "kernels/cuda/reduce_axes.cuh"

namespace ortmodule::cuda {
namespace {

template <class T>
struct Prod {
  using C = std::conditional_t<std::is_floating_point_v<typename ReduceCompute<T>::type>, double,
                               int64_t>;
  using Partial = C;
  static ORTM_HD Partial start() { return 1; }
  static ORTM_HD Partial combine(Partial a, Partial b) {
    if constexpr (std::is_integral_v<Partial>) {
      return static_cast<Partial>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
  static ORTM_HD C add(C a, C b) { return combine(a, b); }
};

}  // namespace

/// A product as far as it goes: it has the type of the result, so that runs would round no less,
/// and would take twice the registers.
template <class T>
class Accumulator<Prod<T>> {
 public:
  using C = typename Prod<T>::C;
  __device__ __forceinline__ void add(C x) { product_ = Prod<T>::add(product_, x); }
  __device__ __forceinline__ void tick(int /*count*/) {}
  __device__ __forceinline__ void carry() {}
  __device__ __forceinline__ C result() const { return product_; }

 private:
  C product_ = Prod<T>::start();
};

namespace {

ORTM_REGISTER_IN_ORDER("ReduceProd", "reduce_prod", Prod);
ORTM_REGISTER_ROW_MAJOR("ReduceProd", "reduce_prod", Prod);

}  // namespace
}  // namespace ortmodule::cuda
