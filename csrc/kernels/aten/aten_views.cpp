#include "kernels/aten/aten_views.h"

#include <c10/core/TensorImpl.h>

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
    case DType::Undefined: break;
  }
  throw InternalError("an undefined type has no torch type");
}

at::Tensor as_tensor(const TensorView& view, at::IntArrayRef sizes, at::IntArrayRef strides) {
  // Bytes of the storage only bound what torch may touch: as far as the view reaches.
  int64_t last = 1;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       static_cast<size_t>(std::max<int64_t>(last, 0)) * size_of(view.dtype),
                       at::DataPtr(view.data, at::kCPU), nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(aten_type(view.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor as_tensor(const TensorView& view) {
  const auto rank = static_cast<size_t>(view.rank);
  return as_tensor(view, {view.sizes, rank}, {view.strides, rank});
}

}  // namespace ortmodule
