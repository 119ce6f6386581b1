// Weights kept in float16: half the memory. They are widened where a step reads them.
#pragma once

#include <optional>

#include "inference/host_tensor.h"
#include "ir/graph.h"
#include "runtime/host_memory.h"

namespace ortmodule {

/// Whether a tensor is worth it: float32, and not small.
bool is_halvable(DType dtype, const Sizes& sizes);

/// The elements at `data` (float32, at any address) rounded to float16; nothing if one is beyond
/// its range of 65504.
std::optional<HostTensor> to_half(const void* data, const Sizes& sizes, HostMemory& memory);

/// Makes `input` a float16 tensor, with a Cast to float32 in front of the first node that reads it.
void widen_at_reader(Graph& graph, Value* input);

}  // namespace ortmodule
