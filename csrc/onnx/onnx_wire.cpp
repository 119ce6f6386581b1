#include "onnx/onnx_wire.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <limits>

namespace ortmodule {
namespace {

using google::protobuf::io::CodedInputStream;

// Protobuf's own limit of a message, because its streams count bytes in an int.
constexpr size_t kMessageLimit = std::numeric_limits<int>::max();

Reason too_long(size_t bytes) {
  if (bytes <= kMessageLimit) return std::nullopt;
  return str("a model must have less than 2 GiB beside its external data, but found ", bytes,
             " bytes");
}

CodedInputStream stream(std::string_view bytes) {
  return CodedInputStream(reinterpret_cast<const uint8_t*>(bytes.data()),
                          static_cast<int>(bytes.size()));
}

// The length of the field is checked before it is followed.
bool read_bytes(CodedInputStream& in, std::string_view message, std::string_view& bytes) {
  uint64_t length = 0;
  if (!in.ReadVarint64(&length)) return false;
  const auto start = static_cast<size_t>(in.CurrentPosition());
  if (length > message.size() - start) return false;
  bytes = message.substr(start, length);
  return in.Skip(static_cast<int>(length));
}

bool read_value(CodedInputStream& in, std::string_view message, WireField& field) {
  switch (field.kind) {
    case WireField::Kind::Varint: return in.ReadVarint64(&field.bits);
    case WireField::Kind::Fixed64: return in.ReadLittleEndian64(&field.bits);
    case WireField::Kind::Bytes: return read_bytes(in, message, field.bytes);
    case WireField::Kind::Fixed32: {
      uint32_t bits = 0;
      const bool complete = in.ReadLittleEndian32(&bits);
      field.bits = bits;
      return complete;
    }
  }
  return false;
}

}  // namespace

const char* text_of(WireField::Kind kind) {
  switch (kind) {
    case WireField::Kind::Varint: return "a varint";
    case WireField::Kind::Fixed64: return "8 bytes";
    case WireField::Kind::Bytes: return "a text or message";
    case WireField::Kind::Fixed32: return "4 bytes";
  }
  return "nothing";
}

Reason walk_fields(std::string_view message, Visitor<WireField> visit) {
  if (Reason reason = too_long(message.size())) return reason;
  CodedInputStream in = stream(message);
  const int size = static_cast<int>(message.size());
  while (in.CurrentPosition() < size) {
    const int start = in.CurrentPosition();
    uint32_t tag = 0;
    if (!in.ReadVarint32(&tag)) return str("a field must be complete, but found its end");
    WireField field;
    field.number = static_cast<int>(tag >> 3u);
    if (field.number == 0) return str("a field must have a number, but found 0");
    switch (tag & 7u) {
      case 0: field.kind = WireField::Kind::Varint; break;
      case 1: field.kind = WireField::Kind::Fixed64; break;
      case 2: field.kind = WireField::Kind::Bytes; break;
      case 5: field.kind = WireField::Kind::Fixed32; break;
      default:
        return str("field ", field.number, " must be of a known wire type, but found ", tag & 7u);
    }
    if (!read_value(in, message, field))
      return str("field ", field.number, " must end within its message, but found ", size - start,
                 " bytes left");
    visit(field);
  }
  return std::nullopt;
}

Reason walk_varints(std::string_view packed, Visitor<uint64_t> visit) {
  if (Reason reason = too_long(packed.size())) return reason;
  CodedInputStream in = stream(packed);
  const int size = static_cast<int>(packed.size());
  while (in.CurrentPosition() < size) {
    uint64_t bits = 0;
    if (!in.ReadVarint64(&bits)) return str("packed numbers must be complete varints");
    visit(bits);
  }
  return std::nullopt;
}

namespace {

void append_varint(std::string& message, uint64_t bits) {
  for (; bits >= 0x80; bits >>= 7u) message += static_cast<char>((bits & 0x7fu) | 0x80u);
  message += static_cast<char>(bits);
}

void append_tag(std::string& message, int number, unsigned wire_type) {
  append_varint(message, (static_cast<uint64_t>(number) << 3u) | wire_type);
}

void append_fixed(std::string& message, uint64_t bits, int bytes) {
  for (int i = 0; i < bytes; ++i)
    message += static_cast<char>((bits >> (8u * unsigned(i))) & 0xffu);
}

}  // namespace

void append_bytes_header(std::string& message, int number, size_t size) {
  append_tag(message, number, 2);
  append_varint(message, size);
}

void append_field(std::string& message, const WireField& field) {
  switch (field.kind) {
    case WireField::Kind::Varint:
      append_tag(message, field.number, 0);
      return append_varint(message, field.bits);
    case WireField::Kind::Fixed64:
      append_tag(message, field.number, 1);
      return append_fixed(message, field.bits, 8);
    case WireField::Kind::Bytes:
      append_bytes_header(message, field.number, field.bytes.size());
      message += field.bytes;
      return;
    case WireField::Kind::Fixed32:
      append_tag(message, field.number, 5);
      return append_fixed(message, field.bits, 4);
  }
}

}  // namespace ortmodule
