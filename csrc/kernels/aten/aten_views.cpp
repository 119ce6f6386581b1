#include "kernels/aten/aten_views.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/strides.h>

#include <algorithm>

namespace ortmodule {

at::ScalarType aten_type(DType dtype) {
  switch (dtype) {
    case DType::Float32: return at::kFloat;
    case DType::Float64: return at::kDouble;
    case DType::Float16: return at::kHalf;
    case DType::BFloat16: return at::kBFloat16;
    case DType::Int64: return at::kLong;
    case DType::Int32: return at::kInt;
    case DType::Int16: return at::kShort;
    case DType::Int8: return at::kChar;
    case DType::UInt8: return at::kByte;
    case DType::Bool: return at::kBool;
    case DType::Complex64: return at::kComplexFloat;
    case DType::Complex128: return at::kComplexDouble;
    default: break;  // of sessions only, which do not use torch
  }
  throw InternalError("an element type that torch's kernels do not have");
}

at::TensorOptions engine_options(DType dtype) {
  return at::TensorOptions().dtype(aten_type(dtype)).device(engine_device());
}

c10::DispatchKeySet dense_keys(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

namespace {

at::Tensor tensor_on(c10::Device device, const TensorView& view, at::IntArrayRef sizes,
                     at::IntArrayRef strides) {
  // Bytes of the storage only bound what torch may touch: as far as the view reaches.
  int64_t reach = 1;
  for (size_t i = 0; i < sizes.size(); ++i) reach += (sizes[i] - 1) * strides[i];
  const bool is_empty = std::ranges::count(sizes, 0) > 0;
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       static_cast<size_t>(is_empty ? 0 : reach) * size_of(view.dtype),
                       at::DataPtr(view.data, device), nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), dense_keys(device), c10::scalarTypeToTypeMeta(aten_type(view.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

// Owned by this tensor alone (the storage of tensor_on has no context, so that a view of an operand
// owns nothing), which nobody else holds, laid out as planned and where it belongs; a number may
// stay on the host.
bool can_be_taken_over(const at::Tensor& tensor, const TensorView& view) {
  if (!tensor.storage().data_ptr().get_context() || tensor.storage().use_count() != 1) return false;
  if (tensor.use_count() != 1) return false;
  if (tensor.device() != engine_device() && tensor.dim() > 0) return false;
  const auto rank = static_cast<size_t>(view.rank);
  if (!tensor.sizes().equals({view.sizes, rank})) return false;
  for (size_t i = 0; i < rank; ++i)
    if (view.sizes[i] > 1 && tensor.strides()[i] != view.strides[i]) return false;
  return tensor.scalar_type() == aten_type(view.dtype) && tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() == view.byte_count();
}

/// Whether elements lie at the same places under both strides.
bool same_memory(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && a[i] != b[i]) return false;
  return true;
}

}  // namespace

at::Tensor as_tensor(const TensorView& view, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return tensor_on(engine_device(), view, sizes, strides);
}

at::Tensor operand(const KernelArgs& args, size_t i) {
  const NodeFacts& node = args.facts.node();
  const OperandRef& ref = node.inputs[i];
  if (ref.kind != OperandRef::Kind::Literal) return as_tensor(args.in[i]);
  return at::scalar_tensor(ref.literal, engine_options(node.input_dtypes[i]));
}

std::optional<at::Tensor> optional_operand(const KernelArgs& args, size_t i) {
  if (i >= args.in.size() || !args.in[i].data) return std::nullopt;
  return as_tensor(args.in[i]);
}

at::Tensor as_number_anywhere(const TensorView& view) {
  const auto rank = static_cast<size_t>(view.rank);
  const c10::Device device = lies_on_engine_device(view.data) ? engine_device() : c10::kCPU;
  return tensor_on(device, view, {view.sizes, rank}, {view.strides, rank});
}

at::Tensor with_own_memory(const at::Tensor& operand) {
  if (operand.storage().data_ptr().get_context()) return operand;
  const auto bytes = static_cast<int64_t>(operand.storage().nbytes());
  const TensorView raw{operand.storage().mutable_data(), DType::UInt8, 0, nullptr, nullptr};
  const at::Tensor memory = tensor_on(operand.device(), raw, {bytes}, {1}).clone();
  return at::empty({0}, operand.options())
      .set_(memory.storage(), 0, operand.sizes(), operand.strides());
}

bool is_of_torchs_allocator(const at::Tensor& tensor) {
  const at::DataPtr& memory = tensor.storage().data_ptr();
  return memory.get_deleter() == c10::GetAllocator(tensor.device().type())->raw_deleter();
}

Buffer give(const at::Tensor& result, const TensorView& out) {
  at::Tensor given;
  if (can_be_taken_over(result, out)) {
    given = result;
  } else {
    const auto rank = static_cast<size_t>(out.rank);
    given = at::empty_strided({out.sizes, rank}, {out.strides, rank}, engine_options(out.dtype));
    given.copy_(result);
  }
  // The memory itself with its own deleter, by which torch's allocators know what is theirs:
  // `record_stream` does nothing, and says nothing, for memory with another one.
  void* data = given.mutable_data_ptr();
  at::DataPtr memory = given.storage().set_data_ptr(at::DataPtr(nullptr, given.device()));
  const auto deleter = memory.get_deleter();
  return Buffer(data, static_cast<int64_t>(out.byte_count()), memory.release_context(), deleter);
}

void give_used(const KernelArgs& args, std::tuple<at::Tensor, at::Tensor, at::Tensor>&& results) {
  const std::vector<bool>& used = args.facts.node().output_used;
  std::array<at::Tensor, 3> gradients = {std::move(std::get<0>(results)),
                                         std::move(std::get<1>(results)),
                                         std::move(std::get<2>(results))};
  for (size_t i = 0; i < gradients.size(); ++i)
    if (used[i]) args.results[i] = give(gradients[i], args.out[i]);
}

at::Tensor as_tensor(const TensorView& view) {
  const auto rank = static_cast<size_t>(view.rank);
  const at::IntArrayRef sizes(view.sizes, rank), strides(view.strides, rank);
  if (rank != 4 && rank != 5) return as_tensor(view, sizes, strides);
  // torch reads the memory format off dimensions of size 1 too: there the planned strides are any.
  const auto last = rank == 4 ? c10::get_channels_last_strides_2d(sizes)
                              : c10::get_channels_last_strides_3d(sizes);
  const bool is_last = same_memory(sizes, strides, last) &&
                       !same_memory(sizes, strides, c10::contiguous_strides(sizes));
  return as_tensor(view, sizes, is_last ? at::IntArrayRef(last) : strides);
}

}  // namespace ortmodule
