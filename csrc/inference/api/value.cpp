// Values of the public C++ API, and their element types.
#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "base/element_value.h"
#include "inference/api/translate_errors.h"
#include "onnx/onnx_types.h"

namespace ortmodule::inference {
inline namespace v1 {
namespace {

constexpr size_t kAlignment = 64;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "[Value] " + message);
}

std::string text_of(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += str(i ? "," : "", sizes[i]);
  return text + "]";
}

// The number of elements; throws if it, or its bytes, are no int64_t.
int64_t counted(ElementType type, const std::vector<int64_t>& sizes) {
  const auto bytes = static_cast<int64_t>(byte_size(type));
  if (bytes == 0)
    throw Error(ErrorCode::NotImplemented,
                "[Value] a tensor must have elements of whole bytes, "
                "but found type " +
                    name_of(type));
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; }))
    refuse("sizes must not be negative, but found " + text_of(sizes));
  if (std::count(sizes.begin(), sizes.end(), 0)) return 0;
  int64_t count = 1;
  for (int64_t size : sizes) {
    if (count > std::numeric_limits<int64_t>::max() / bytes / size)
      refuse("a tensor must have fewer than 2^63 bytes, but found sizes " + text_of(sizes));
    count *= size;
  }
  return count;
}

}  // namespace

size_t byte_size(ElementType type) {
  const OnnxElement* element = find_onnx_element(static_cast<int64_t>(type));
  if (!element) return 0;
  const size_t bytes = size_of(element->dtype);
  return bytes > 0 ? bytes : static_cast<size_t>(element->bits) / 8;
}

std::string name_of(ElementType type) { return onnx_type_name(static_cast<int64_t>(type)); }

bool supported(ElementType type) {
  return onnx_dtype(static_cast<int64_t>(type)) != DType::Undefined;
}

Float16::Float16(float value) : bits(float16_bits(value)) {}

Float16::operator float() const {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t fraction = bits & 0x3ffu;
  uint32_t result = 0;
  if (exponent == 0x1f) {
    result = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent != 0) {
    result = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {  // a subnormal number: a multiple of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    std::memcpy(&result, &magnitude, sizeof result);
    result |= sign;
  }
  float value = 0;
  std::memcpy(&value, &result, sizeof value);
  return value;
}

Float16 Float16::from_bits(uint16_t bits) {
  Float16 value;
  value.bits = bits;
  return value;
}

BFloat16::BFloat16(float value) : bits(bfloat16_bits(value)) {}

BFloat16::operator float() const {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

BFloat16 BFloat16::from_bits(uint16_t bits) {
  BFloat16 value;
  value.bits = bits;
  return value;
}

struct Value::Impl {
  Kind kind = Kind::Absent;
  ElementType type = ElementType::Undefined;
  std::vector<int64_t> sizes;
  int64_t count = 0;
  void* data = nullptr;
  bool read_only = false;
  std::shared_ptr<const void> owner;
  std::vector<Value> elements;
};

Value::Value() = default;

Value Value::placed(ElementType type, std::vector<int64_t> sizes, void* data, size_t bytes,
                    bool read_only, std::shared_ptr<const void> owner) {
  auto impl = std::make_shared<Impl>();
  impl->kind = Kind::Tensor;
  impl->type = type;
  impl->count = counted(type, sizes);
  const size_t wanted = static_cast<size_t>(impl->count) * byte_size(type);
  if (bytes < wanted)
    refuse(str("a tensor of sizes ", text_of(sizes), " and type ", name_of(type), " must have ",
               wanted, " bytes, but found ", bytes));
  if (wanted != 0 && data == nullptr) refuse("the address of elements must not be null");
  const size_t alignment = std::min<size_t>(byte_size(type), alignof(std::max_align_t));
  if (wanted != 0 && reinterpret_cast<uintptr_t>(data) % alignment != 0)
    refuse(str("elements of type ", name_of(type), " must be at a multiple of ", alignment,
               " bytes: use Value::copied"));
  impl->sizes = std::move(sizes);
  impl->data = wanted != 0 ? data : nullptr;
  impl->read_only = read_only;
  impl->owner = std::move(owner);
  Value value;
  value.impl_ = std::move(impl);
  return value;
}

size_t Value::byte_count_of(ElementType type, const std::vector<int64_t>& sizes) {
  return static_cast<size_t>(counted(type, sizes)) * byte_size(type);
}

Value Value::tensor(ElementType type, std::vector<int64_t> sizes) {
  return translated([&] {
    const size_t bytes = byte_count_of(type, sizes);
    if (bytes == 0) return placed(type, std::move(sizes), nullptr, 0, false, {});
    std::shared_ptr<void> memory(::operator new (bytes, std::align_val_t{kAlignment}), [](void* p) {
      ::operator delete (p, std::align_val_t{kAlignment});
    });
    std::memset(memory.get(), 0, bytes);
    return placed(type, std::move(sizes), memory.get(), bytes, false, memory);
  });
}

Value Value::copied(ElementType type, std::vector<int64_t> sizes, const void* data, size_t bytes) {
  Value value = tensor(type, std::move(sizes));
  if (bytes != value.byte_count())
    refuse(str("a tensor of sizes ", text_of(value.sizes()), " and type ", name_of(type),
               " must have ", value.byte_count(), " bytes, but found ", bytes));
  if (bytes == 0) return value;
  if (data == nullptr) refuse("the address of elements must not be null");
  std::memcpy(value.mutable_data(), data, bytes);
  return value;
}

Value Value::borrowed(ElementType type, std::vector<int64_t> sizes, void* data, size_t bytes,
                      std::shared_ptr<const void> owner) {
  return placed(type, std::move(sizes), data, bytes, false, std::move(owner));
}

Value Value::borrowed(ElementType type, std::vector<int64_t> sizes, const void* data, size_t bytes,
                      std::shared_ptr<const void> owner) {
  // mutable_data() refuses it.
  return placed(type, std::move(sizes), const_cast<void*>(data), bytes, true,  // NOLINT
                std::move(owner));
}

Value Value::sequence(std::vector<Value> elements) {
  for (const Value& element : elements)
    if (!element.is_tensor()) refuse("a sequence must consist of tensors");
  auto impl = std::make_shared<Impl>();
  impl->kind = Kind::Sequence;
  impl->elements = std::move(elements);
  Value value;
  value.impl_ = std::move(impl);
  return value;
}

Value::Kind Value::kind() const noexcept { return impl_ ? impl_->kind : Kind::Absent; }

const Value::Impl& Value::as_tensor() const {
  if (kind() != Kind::Tensor)
    refuse(str("it must be a tensor, but found ", is_sequence() ? "a sequence" : "no value"));
  return *impl_;
}

ElementType Value::type() const { return as_tensor().type; }
const std::vector<int64_t>& Value::sizes() const { return as_tensor().sizes; }
int64_t Value::element_count() const { return as_tensor().count; }
size_t Value::byte_count() const {
  return static_cast<size_t>(as_tensor().count) * byte_size(impl_->type);
}
const void* Value::data() const { return as_tensor().data; }
bool Value::read_only() const { return as_tensor().read_only; }

void* Value::mutable_data() const {
  if (read_only()) refuse("the tensor was borrowed for reading only");
  return impl_->data;
}

void Value::check_type(ElementType wanted) const {
  if (type() != wanted)
    refuse("the elements must have type " + name_of(wanted) + ", but found " + name_of(type()));
}

const std::vector<Value>& Value::elements() const {
  if (kind() != Kind::Sequence)
    refuse(str("it must be a sequence, but found ", is_tensor() ? "a tensor" : "no value"));
  return impl_->elements;
}

}  // namespace v1
}  // namespace ortmodule::inference
