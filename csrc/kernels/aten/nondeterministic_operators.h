// Which of torch's operators give other bits from run to run on CUDA.
#pragma once

#include "kernels/kernel.h"

namespace ortmodule {

/// Whether this call of a dispatched operator may do so on CUDA under the flags that are set now:
/// as torch.use_deterministic_algorithms documents it, and where torch's kernels raise the alert
/// for it. Dynamo guards the flags, so they are those of the run as well.
bool varies_on_cuda(const NodeFacts& node);

}  // namespace ortmodule
