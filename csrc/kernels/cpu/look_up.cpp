// LookUp: a binary search for each element, without branches.
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class T>
inline bool is_before(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a < b || (a == a && b != b);
  return a < b;
}

/// The place of `x` among `count` sorted keys, `count` where it is none of them.
template <class T>
inline int64_t place_of(T x, const T* keys, int64_t count) {
  const T* first = keys;
  for (int64_t left = count; left > 1;) {
    const int64_t half = left / 2;
    first += is_before(first[half - 1], x) ? half : 0;
    left -= half;
  }
  const bool found = count > 0 && !is_before(*first, x) && !is_before(x, *first);
  return found ? first - keys : count;
}

void run_look_up(const KernelArgs& args) {
  const int64_t keys = args.in[1].sizes[0];
  const bool must_find = args.facts.node().attrs.flag("must_find");
  dispatch_real(args.in[0].dtype, [&]<class T> {
    if constexpr (!kIsHalf<T>) {
      const T* x = args.in[0].as<const T>();
      int64_t* y = args.out[0].as<int64_t>();
      parallel_ranges(args.context, args.in[0].element_count(), grain_for(16),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          y[i] = place_of(x[i], args.in[1].as<const T>(), keys);
                          if (must_find && y[i] == keys)
                            throw Error(str("[encoder] each element must be one of the ", keys,
                                            " categories, but element ", i, " is not"));
                        }
                      });
    }
  });
}

REGISTER_CPU_KERNEL({.op = "LookUp",
                     .name = "look_up_cpu",
                     .dtypes = kFloats | kIntegers | DTypeSet{DType::Bool},
                     .run = run_look_up});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
