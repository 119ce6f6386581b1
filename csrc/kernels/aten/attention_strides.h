// How torch lays out the results of its fused attention, so that they are planned as they come.
#pragma once

#include <optional>

#include "kernels/kernel.h"

namespace ortmodule {

/// Strides of all results of a step with one of torch's fused attention operators
/// (`aten._scaled_dot_product_*`); nothing for any other. A result of four dimensions, [batch,
/// heads, length, width], comes in the dimension order of its operand: the output in that of the
/// query, each gradient in that of what it belongs to (`empty_like` in
/// ATen/native/transformers/attention.cpp and cuda/attention_backward.cu). The memory-efficient
/// kernels, and the gradients on the CPU, are always [batch, length, heads, width]. Where torch
/// does otherwise, the result is copied.
std::optional<std::vector<Sizes>> attention_strides(const StepFacts& facts);

}  // namespace ortmodule
