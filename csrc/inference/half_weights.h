// Weights kept in 16 bits: half the memory. They are widened where a step reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inference/host_tensor.h"
#include "ir/graph.h"
#include "runtime/host_memory.h"

namespace ortmodule {

/// Whether a tensor is worth it: float32, and not small.
bool is_halvable(DType dtype, const Sizes& sizes);

/// Copies `count` elements from element `first` on.
using ReadElements = std::function<void(int64_t first, int64_t count, float* to)>;

/// Elements of float32, read twice in small parts, rounded to float16; to bfloat16 if one is
/// beyond float16's range of 65504, or all are so small that float16 would keep fewer bits of them.
/// Nothing if one is NaN, infinite, or beyond the range of both.
std::optional<HostTensor> to_half(const ReadElements& read, const Sizes& sizes, HostMemory& memory);

/// Makes `input` a tensor of 16 bits, with a Cast to float32 in front of the first node that reads
/// it.
void widen_at_reader(Graph& graph, Value* input, DType half);

/// Lets a graph that computes constants give those that are worth it in 16 bits, each as soon as it
/// is there, so that no two of them are held in float32. `types` by output; Float32: as it is.
void halve_outputs(Graph& graph, const std::vector<DType>& types);

/// Whether a tensor of 16-bit floats holds what was rounded to it: all elements are finite, and not
/// all so small that bfloat16 has more bits of them.
bool holds_values(const HostTensor& half);

}  // namespace ortmodule
