// The encoding of protobuf messages, which ONNX files consist of. A message is walked field by
// field in the bytes of the file: nothing is copied and nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ortmodule {

/// A function that is called and not kept.
template <class Argument>
class Visitor {
 public:
  template <class Function>
  Visitor(const Function& function)  // NOLINT: lambdas are passed as they are
      : function_(&function), call_([](const void* visit, const Argument& argument) {
          (*static_cast<const Function*>(visit))(argument);
        }) {}
  void operator()(const Argument& argument) const { call_(function_, argument); }

 private:
  const void* function_;
  void (*call_)(const void*, const Argument&);
};

/// One field of a message.
struct WireField {
  enum class Kind : uint8_t { Varint, Fixed64, Bytes, Fixed32 };
  int number = 0;
  Kind kind = Kind::Varint;
  uint64_t bits = 0;       // a number's
  std::string_view bytes;  // text, a message or packed numbers
};

/// "a varint", "bytes" ...
const char* text_of(WireField::Kind kind);

/// Calls `visit` for each field of `message`. Returns why the rest is no message, if so.
Reason walk_fields(std::string_view message, Visitor<WireField> visit);

/// The same for the numbers of a packed field of varints.
Reason walk_varints(std::string_view packed, Visitor<uint64_t> visit);

/// Appends a field as walk_fields() gave it.
void append_field(std::string& message, const WireField& field);
/// Appends the start of a field of `size` bytes, which follow.
void append_bytes_header(std::string& message, int number, size_t size);

}  // namespace ortmodule
