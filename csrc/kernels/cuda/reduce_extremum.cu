// ReduceMax and ReduceMin (reduce_axes.cuh). NaN wins.
#include <limits>

#include "kernels/cuda/reduce_axes.cuh"

namespace ortmodule::cuda {
namespace {

template <class T, bool largest>
struct Extremum {
  using C = typename ReduceCompute<T>::type;
  using Partial = C;
  static ORTM_HD Partial start() {
    using Limits = std::numeric_limits<C>;
    if constexpr (Limits::has_infinity) {
      return largest ? -Limits::infinity() : Limits::infinity();
    } else {
      return largest ? Limits::min() : Limits::max();
    }
  }
  static ORTM_HD C add(C a, C b) {
    const bool better = largest ? b > a : b < a;
    return better || b != b ? b : a;
  }
  static ORTM_HD Partial combine(Partial a, Partial b) { return add(a, b); }
};
template <class T>
using Max = Extremum<T, true>;
template <class T>
using Min = Extremum<T, false>;

ORTM_REGISTER_IN_ORDER("ReduceMax", "reduce_max", Max);
ORTM_REGISTER_IN_ORDER("ReduceMin", "reduce_min", Min);
ORTM_REGISTER_ROW_MAJOR("ReduceMax", "reduce_max", Max);
ORTM_REGISTER_ROW_MAJOR("ReduceMin", "reduce_min", Min);

}  // namespace
}  // namespace ortmodule::cuda
