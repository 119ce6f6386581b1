// Planned memory as torch tensors, for kernels that call ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "kernels/aten/engine_device.h"
#include "kernels/kernel.h"

namespace ortmodule {

/// A tensor over the view's memory, on engine_device(), that owns nothing.
at::Tensor as_tensor(const TensorView& view);

/// The same memory with other sizes and strides.
at::Tensor as_tensor(const TensorView& view, at::IntArrayRef sizes, at::IntArrayRef strides);

/// The same for a number that give() took from an operator, which may have left it on the host.
at::Tensor as_number_anywhere(const TensorView& view);

/// Operand i; a literal becomes a tensor of one number.
at::Tensor operand(const KernelArgs& args, size_t i);

/// Operand i, or nothing if it is absent.
std::optional<at::Tensor> optional_operand(const KernelArgs& args, size_t i);

/// The same in memory of its own, at the same strides; an operand that has some stays as it is.
at::Tensor with_own_memory(const at::Tensor& operand);

/// Whether torch's allocator of its device gave the tensor's memory.
bool is_of_torchs_allocator(const at::Tensor& tensor);

/// Hands `result` over as planned output `out`; copied first if its layout is not the planned one,
/// or somebody else holds it or its memory.
Buffer give(const at::Tensor& result, const TensorView& out);

/// give() of the outputs that are used. Only the tuple may hold the results, or they are copied.
void give_used(const KernelArgs& args, std::tuple<at::Tensor, at::Tensor, at::Tensor>&& results);

/// torch's name of a type.
at::ScalarType aten_type(DType dtype);

/// Options of tensors of that type on engine_device().
at::TensorOptions engine_options(DType dtype);

/// The key under which dense tensors of a device are dispatched.
c10::DispatchKeySet dense_keys(c10::Device device);

}  // namespace ortmodule
