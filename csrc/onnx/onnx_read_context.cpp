#include "onnx/onnx_read_context.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace ortmodule {
namespace {

constexpr int kMaxDepth = 64;  // of graphs and types within each other
// The smallest sensible node takes 16 bytes of a file and 360 of memory.
constexpr size_t kMemoryPerFileByte = 32;
constexpr size_t kDensePerFileByte = 1024;  // sparse tensors with one element in a thousand
constexpr size_t kSmallMemory = size_t{16} << 20;

// The number of bytes that follow the first byte of a character in UTF-8; -1 if there is none.
int following_bytes(unsigned char first) {
  if (first < 0x80) return 0;
  if (first >= 0xc2 && first < 0xe0) return 1;
  if (first >= 0xe0 && first < 0xf0) return 2;
  if (first >= 0xf0 && first < 0xf5) return 3;
  return -1;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const int following = following_bytes(first);
    if (following < 0 || text.size() - i <= static_cast<size_t>(following)) return false;
    for (int k = 1; k <= following; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      if (byte < 0x80 || byte >= 0xc0) return false;
      // Longer forms than needed, surrogates, and numbers beyond the last character.
      if (k > 1) continue;
      if ((first == 0xe0 && byte < 0xa0) || (first == 0xed && byte >= 0xa0)) return false;
      if ((first == 0xf0 && byte < 0x90) || (first == 0xf4 && byte >= 0x90)) return false;
    }
    i += static_cast<size_t>(following) + 1;
  }
  return true;
}

// The name of a node, or what tells it from others: a node needs no name.
std::string name_of(const OnnxNode& node) {
  if (!node.name.empty()) return node.name;
  if (!node.outputs.empty() && !node.outputs[0].empty()) return node.outputs[0];
  return node.op;
}

size_t limit(size_t file_bytes, size_t per_byte) { return kSmallMemory + file_bytes * per_byte; }

}  // namespace

OnnxReadContext::OnnxReadContext(SharedBytes file, std::string name, OnnxExternalData external,
                                 const OnnxSubstitutes& given)
    : file_(std::move(file)),
      name_(std::move(name)),
      external_(std::move(external)),
      given_(given),
      memory_left_bytes_(limit(file_.size(), kMemoryPerFileByte)),
      dense_left_bytes_(limit(file_.size(), kDensePerFileByte)) {
  for (const auto& [location, content] : given.files) external_.add_file(location, content);
}

OnnxRest OnnxReadContext::rest(std::string fields) {
  if (fields.empty()) return nullptr;
  charge(sizeof(std::string) + fields.size());
  return std::make_shared<const std::string>(std::move(fields));
}

SharedBytes OnnxReadContext::decoded(std::string elements) {
  constexpr size_t kSmall = 4 << 10;
  if (elements.empty() || elements.size() >= kSmall) return elements;
  if (!decoded_) decoded_ = std::make_shared<PageRegion>();
  void* const place = decoded_->allocate(elements.size());
  std::memcpy(place, elements.data(), elements.size());
  return {decoded_, std::string_view(static_cast<const char*>(place), elements.size())};
}

void OnnxReadContext::fail(const std::string& message) const {
  std::string place;
  if (node_) place = str("node '", name_of(*node_), "'");
  if (tensor_ && !tensor_->empty())
    place += str(place.empty() ? "" : ", ", "tensor '", *tensor_, "'");
  if (value_ && !value_->empty()) place += str(place.empty() ? "" : ", ", "value '", *value_, "'");
  if (!place.empty()) place = str(" (", place, ")");
  throw Error(str("[onnx] ", name_, ": ", message, place));
}

void OnnxReadContext::walk(std::string_view message, Visitor<WireField> visit) const {
  if (Reason reason = walk_fields(message, visit)) fail(*reason);
}

void OnnxReadContext::expect(const WireField& field, WireField::Kind kind) const {
  if (field.kind != kind)
    fail(str("field ", field.number, " must be ", text_of(kind), ", but found ",
             text_of(field.kind)));
}

int64_t OnnxReadContext::integer(const WireField& field) const {
  expect(field, WireField::Kind::Varint);
  return static_cast<int64_t>(field.bits);
}

float OnnxReadContext::number(const WireField& field) const {
  expect(field, WireField::Kind::Fixed32);
  return std::bit_cast<float>(static_cast<uint32_t>(field.bits));
}

std::string_view OnnxReadContext::bytes(const WireField& field) const {
  expect(field, WireField::Kind::Bytes);
  return field.bytes;
}

std::string OnnxReadContext::text(const WireField& field) const {
  const std::string_view found = bytes(field);
  if (!is_utf8(found))
    fail(str("text must be UTF-8, but found other bytes in field ", field.number));
  return std::string(found);
}

void OnnxReadContext::integers(const WireField& field, Visitor<int64_t> visit) const {
  if (field.kind != WireField::Kind::Bytes) return visit(integer(field));
  const auto pass = [&](uint64_t bits) { visit(static_cast<int64_t>(bits)); };
  if (Reason reason = walk_varints(field.bytes, pass)) fail(*reason);
}

void OnnxReadContext::fixed(const WireField& field, size_t element_bytes,
                            Visitor<std::string_view> visit) const {
  if (field.kind != WireField::Kind::Bytes) {
    expect(field, element_bytes == 4 ? WireField::Kind::Fixed32 : WireField::Kind::Fixed64);
    return visit(std::string_view(reinterpret_cast<const char*>(&field.bits), element_bytes));
  }
  if (field.bytes.size() % element_bytes != 0)
    fail(str("packed numbers must have a multiple of ", element_bytes, " bytes, but found ",
             field.bytes.size()));
  visit(field.bytes);
}

void OnnxReadContext::floats(const WireField& field, Visitor<float> visit) const {
  fixed(field, sizeof(float), [&](std::string_view part) {
    for (size_t i = 0; i < part.size(); i += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, part.data() + i, sizeof(float));
      visit(value);
    }
  });
}

void OnnxReadContext::charge(size_t bytes) {
  if (bytes > memory_left_bytes_)
    fail(str("a model must not take more than ", kMemoryPerFileByte,
             " times the memory of its file, of ", file_.size(), " bytes"));
  memory_left_bytes_ -= bytes;
}

void OnnxReadContext::charge_dense(size_t bytes) {
  if (bytes > dense_left_bytes_)
    fail(str("sparse tensors must not take more than ", kDensePerFileByte,
             " times the memory of the file, of ", file_.size(), " bytes, but found ", bytes,
             " bytes more than the ", dense_left_bytes_, " left"));
  dense_left_bytes_ -= bytes;
}

OnnxReadContext::Level::Level(OnnxReadContext& context) : context_(context) {
  if (context_.depth_ >= kMaxDepth)
    context_.fail(str("graphs and types must be nested at most ", kMaxDepth, " deep"));
  ++context_.depth_;
}

}  // namespace ortmodule
