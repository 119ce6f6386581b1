// Feeds that kernels and the import can read.
#pragma once

#include <vector>

#include "importer/import_model.h"
#include "inference/host_tensor.h"
#include "runtime/host_memory.h"

namespace ortmodule {

/// Replaces tensors that cannot be read where they are by row-major copies in `copies`: those at
/// addresses that are no multiple of the element size, those with negative strides, and small
/// vectors with strides, whose content may decide sizes. Strides of the others become canonical.
/// Returns the bytes of the copies that those without data would have.
int64_t make_readable(std::vector<HostTensorView>& tensors, HostMemory& memory,
                      std::vector<Buffer>& copies);

/// Whether make_readable() copies the tensor.
bool is_copied(const HostTensorView& tensor);

/// Whether the import may read the tensor's content, which then decides sizes.
bool may_decide_sizes(const HostTensorView& tensor);

}  // namespace ortmodule
