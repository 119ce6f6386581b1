// For kernels that need scratch for each thread: how many threads a plan made now is for.
#pragma once

#include <cstdint>

namespace ortmodule {

/// At least 1; what the function given to set_worker_threads says, 1 without one. A step may run on
/// fewer threads later, and on more if the kernel does not mind.
int64_t worker_threads();

/// The bindings give torch's count.
void set_worker_threads(int64_t (*count)());

}  // namespace ortmodule
