// What convolutions share: scratch of each thread, and units of work among threads.
#pragma once

#include "kernels/cpu/conv_image.h"
#include "kernels/cpu/conv_lines.h"
#include "kernels/cpu/conv_plan.h"
#include "kernels/cpu/conv_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Threads that have scratch of their own.
inline int64_t slots(const StepFacts& facts) { return std::max<int64_t>(facts.threads, 1); }

/// Elements of scratch of a thread.
template <class T>
int64_t conv_scratch_elements(const ConvShape& s) {
  switch (s.method) {
    case ConvMethod::Image: return ConvImage<T>::scratch_elements(s);
    case ConvMethod::Lines: return ConvLines<T>::scratch_elements(s);
    case ConvMethod::Product: return ConvProduct<T>::scratch_elements(s);
  }
  return 0;
}

/// All units of a method; `memory` is the scratch of all threads.
template <class C, class Method>
void run_units(const KernelArgs& args, const ConvShape& s, const Method& method, C* memory) {
  // Multiplications worth waking a thread.
  constexpr int64_t kGrain = 1 << 20;
  const int64_t all = s.images * s.groups * s.outputs * s.inner() * s.patches.pixels;
  const int64_t threads = std::clamp<int64_t>(all / kGrain, 1, slots(args.facts));
  const int64_t units = Method::units(s), elements = Method::scratch_elements(s);
  parallel_ranges(args.context, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      method.run(i * units / threads, (i + 1) * units / threads, memory + i * elements);
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
