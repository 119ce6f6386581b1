// What a library call allocates inside, found by making it once.
#pragma once

#include <functional>

#include "kernels/kernel.h"

namespace ortmodule {

/// Bytes that `run` takes from torch's allocator at its peak beyond the results it gives, on
/// operands of zeros with the layouts of `facts`. The libraries choose their algorithms by shape,
/// instruction set and version, so nothing but a call can tell; each signature is called once per
/// process and number of threads. Without `allocates_outputs` the outputs have memory, as planned.
/// Nothing if the call refuses such operands.
std::optional<size_t> probed_library_bytes(const StepFacts& facts, void (*run)(const KernelArgs&),
                                           const std::shared_ptr<const void>& prepared,
                                           bool allocates_outputs);

/// Bytes that `call` takes from torch's allocator on engine_device() at its peak.
size_t bytes_taken_by(const std::function<void()>& call);

/// The most that runs of such a step were seen to take beyond the results that they gave, or 0: for
/// operators that zeros are no operands of.
size_t noted_library_bytes(const StepFacts& facts);
/// Notes what a run of such a step took; later plans reckon with the most. Apart from others those
/// that wrote their results into planned memory.
void note_library_bytes(const StepFacts& facts, bool allocates_outputs, size_t bytes);

/// KernelDef::library_bytes of a kernel that calls a library: what a probe finds, or 0.
template <void (*run)(const KernelArgs&), bool allocates_outputs = false>
size_t probed_bytes(const StepFacts& facts) {
  return probed_library_bytes(facts, run, nullptr, allocates_outputs).value_or(0);
}
template <void (*run)(const KernelArgs&), std::shared_ptr<const void> (*prepare)(const StepFacts&),
          bool allocates_outputs = false>
size_t probed_bytes(const StepFacts& facts) {
  return probed_library_bytes(facts, run, prepare(facts), allocates_outputs).value_or(0);
}

}  // namespace ortmodule
