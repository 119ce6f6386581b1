#include "inference/value.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "inference/copy_elements.h"
#include "inference/device_weights.h"
#include "onnx/onnx_types.h"
#include "runtime/host_memory.h"
#include "runtime/run_device.h"

namespace ortmodule {
namespace {

int64_t element_bits(int element_type) {
  const OnnxElement* element = find_onnx_element(element_type);
  ORTM_CHECK(element,
             "[OrtValue] an element type must be a number of ONNX's TensorProto.DataType, ",
             "but found ", element_type);
  ORTM_CHECK(element->bits > 0, "[OrtValue] elements must be numbers, but found type ",
             element->name, ": such tensors are not supported");
  // Elements of less than a byte that the engine knows have one each.
  const bool is_narrow = element->dtype != DType::Undefined && packed_bits(element->dtype) < 8;
  return is_narrow ? 8 : element->bits;
}

int64_t bytes_of(int64_t count, int64_t bits) { return (count * bits + 7) / 8; }

// Blocks below this size come from the heap: a page each would be too much.
constexpr int64_t kMappedBytes = 64 << 10;

Buffer allocate(int64_t bytes) {
  static HostMemory memory;
  if (bytes >= kMappedBytes) return memory.allocate(bytes);
  constexpr std::align_val_t kAlignment{64};
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* data = ::operator new(size, kAlignment);
  std::memset(data, 0, size);
  return {data, bytes, data, [](void* held) { ::operator delete(held, kAlignment); }};
}

SharedTensor shared(HostTensor tensor) {
  SharedTensor made;
  made.element_type = onnx_number(tensor.dtype);
  made.sizes = std::move(tensor.sizes);
  made.data = tensor.memory.data();
  made.device = tensor.device;
  made.owner = std::make_shared<Buffer>(std::move(tensor.memory));
  return made;
}

}  // namespace

DType SharedTensor::dtype() const { return onnx_dtype(element_type); }

int64_t SharedTensor::byte_count() const {
  return bytes_of(element_count(sizes), element_bits(element_type));
}

SharedValue::SharedValue(HostResult result) : is_sequence(result.is_sequence) {
  ORTM_CHECK(result.meaning.meaning == OnnxMeaning::Numbers,
             "[OrtValue] an output must be numbers to be a value, but found ",
             result.meaning.meaning == OnnxMeaning::Texts ? "strings" : "maps",
             ": take it from InferenceSession.run in Python");
  for (HostTensor& tensor : result.tensors) tensors.push_back(shared(std::move(tensor)));
}

const SharedTensor& SharedValue::tensor() const {
  ORTM_CHECK(is_tensor(), "[OrtValue] the value must be a tensor, but found ",
             is_sequence ? "a sequence of tensors" : "none");
  return tensors[0];
}

std::string SharedValue::type_text() const {
  const std::string element =
      str("tensor(", tensors.empty() ? "undefined" : onnx_type_name(tensors[0].element_type), ")");
  return is_sequence ? str("seq(", element, ")") : element;
}

int64_t tensor_bytes(int element_type, const Sizes& sizes) {
  constexpr int64_t kMostBits = int64_t{1} << 56;
  const int64_t bits = element_bits(element_type);
  int64_t count = 1;
  for (int64_t size : sizes) {
    ORTM_CHECK(size >= 0, "[OrtValue] sizes must not be negative, but found ", size);
    ORTM_CHECK(count <= kMostBits / bits / std::max<int64_t>(size, 1),
               "[OrtValue] a tensor must have at most ", kMostBits / 8,
               " bytes, but found a size of ", size);
    count *= std::max<int64_t>(size, 1);
  }
  return bytes_of(element_count(sizes), bits);
}

SharedTensor new_tensor(int element_type, const Sizes& sizes, int device) {
  SharedTensor tensor;
  tensor.element_type = element_type;
  tensor.sizes = sizes;
  tensor.device = device;
  const int64_t bytes = tensor_bytes(element_type, sizes);
  Buffer zeros = allocate(bytes);
  auto memory = std::make_shared<Buffer>(
      device == kOnHost ? std::move(zeros) : upload(run_device(device), zeros.data(), bytes));
  tensor.data = memory->data();
  tensor.owner = std::move(memory);
  return tensor;
}

SharedTensor copy_of(const SharedTensor& tensor) {
  SharedTensor copy = new_tensor(tensor.element_type, tensor.sizes);
  copy_tensor(tensor, copy);
  return copy;
}

SharedTensor on_host(const SharedTensor& tensor) {
  return tensor.device == kOnHost ? tensor : copy_of(tensor);
}

// At least one of both is on a device.
void copy_between_devices(const SharedTensor& from, const SharedTensor& to) {
  if (to.device != kOnHost) {
    ORTM_CHECK(to.strides.empty(), "[OrtValue] memory on a device must be row-major to be written");
    const bool dense = from.device == kOnHost && from.strides.empty();
    const SharedTensor source = dense ? from : copy_of(from);
    if (to.byte_count() > 0) run_device(to.device).upload(to.data, source.data, to.byte_count());
    return;
  }
  // What the tensor covers, gaps included; strides are not negative there.
  const auto element_bytes =
      static_cast<size_t>(std::max<int64_t>(element_bits(from.element_type) / 8, 1));
  const ByteRange range = byte_range(from.data, from.sizes, from.strides, element_bytes);
  SharedTensor copy = from;
  copy.device = kOnHost;
  auto memory = std::make_shared<Buffer>(allocate(static_cast<int64_t>(range.end - range.begin)));
  if (range.end > range.begin)
    run_device(from.device).download(memory->data(), from.data, memory->bytes());
  copy.data = memory->data();
  copy.owner = std::move(memory);
  copy_tensor(copy, to);
}

void copy_tensor(const SharedTensor& from, const SharedTensor& to) {
  ORTM_CHECK(!to.read_only, "[OrtValue] the memory must be writable, but found a read-only tensor");
  ORTM_CHECK(from.element_type == to.element_type, "[OrtValue] both tensors must have type ",
             onnx_type_name(to.element_type), ", but found ", onnx_type_name(from.element_type));
  const int64_t count = element_count(to.sizes);
  ORTM_CHECK(element_count(from.sizes) == count, "[OrtValue] the data must have ", count,
             " elements, but found ", element_count(from.sizes));
  const int64_t bits = element_bits(to.element_type);
  if (from.device != kOnHost || to.device != kOnHost) return copy_between_devices(from, to);
  const bool dense = from.strides.empty() && to.strides.empty();
  if (dense) {
    if (count > 0) std::memmove(to.data, from.data, static_cast<size_t>(bytes_of(count, bits)));
    return;
  }
  ORTM_CHECK(bits % 8 == 0, "[OrtValue] elements smaller than a byte must be row-major");
  const auto element_bytes = static_cast<size_t>(bits / 8);
  if (from.sizes != to.sizes) {
    ORTM_CHECK(to.strides.empty(), "[OrtValue] the data must have the sizes of the tensor");
    return copy_elements(from.sizes, element_bytes, from.data, from.strides, to.data, {});
  }
  const bool overlap = byte_range(from.data, from.sizes, from.strides, element_bytes)
                           .overlaps(byte_range(to.data, to.sizes, to.strides, element_bytes));
  if (overlap) {
    const SharedTensor apart = copy_of(from);
    return copy_elements(to.sizes, element_bytes, apart.data, {}, to.data, to.strides);
  }
  copy_elements(to.sizes, element_bytes, from.data, from.strides, to.data, to.strides);
}

}  // namespace ortmodule
