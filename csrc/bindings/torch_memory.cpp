// Conversions between torch and the engine: element types and memory.
#include <c10/core/TensorImpl.h>

#include "bindings/engine.h"
#include "kernels/aten/aten_views.h"

namespace ortmodule::bindings {

DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::Float32;
    case at::kDouble: return DType::Float64;
    case at::kHalf: return DType::Float16;
    case at::kBFloat16: return DType::BFloat16;
    case at::kLong: return DType::Int64;
    case at::kInt: return DType::Int32;
    case at::kShort: return DType::Int16;
    case at::kChar: return DType::Int8;
    case at::kByte: return DType::UInt8;
    case at::kBool: return DType::Bool;
    case at::kComplexFloat: return DType::Complex64;
    case at::kComplexDouble: return DType::Complex128;
    default: break;
  }
  throw Error(str("[dtype] tensors must have a type that ortmodule_py knows, but found ",
                  c10::toString(type)));
}

at::ScalarType to_scalar_type(DType dtype) { return aten_type(dtype); }

at::Tensor tensor_from(Buffer buffer, DType dtype, const Layout& layout,
                       const DeviceRuntime& runtime) {
  void* data = buffer.data();
  const auto bytes = static_cast<size_t>(buffer.bytes());
  const auto deleter = buffer.deleter();
  void* context = buffer.release_context();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       at::DataPtr(data, context, deleter, runtime.device()),
                       runtime.torch_allocator(),
                       /*resizable=*/true);
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), dense_keys(runtime.device()),
                                               c10::scalarTypeToTypeMeta(to_scalar_type(dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
  return tensor;
}

}  // namespace ortmodule::bindings
